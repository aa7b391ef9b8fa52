"""Imports torch in a thread, from a folder given by name, and allocates 1,000 tensors 50 ms later."""

import json
import sys
import threading
import time

print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
if sys.argv[1]:
    sys.path.insert(0, sys.argv[1])
kept = []


def work():
    import torch

    time.sleep(0.05)
    for size in range(1, 1001):
        kept.append(torch.empty(size, device="cuda"))
    print(json.dumps({"allocated": torch.cuda.memory_allocated()}), flush=True)


thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.stdin.readline()
