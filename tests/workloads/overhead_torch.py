"""Allocates and frees in the real PyTorch: {"pairs": N} on standard input does that N times, 30 frames deep,
and prints {"nanoseconds": TIME}. {"history": true} and {"history": false} turn PyTorch's own recording of
its allocations on and off."""

import json
import sys
import time

import torch

torch.empty(512, device="cuda")


def pairs(count):
    start = time.perf_counter_ns()
    for _ in range(count):
        torch.empty(512, device="cuda")
    return time.perf_counter_ns() - start


def deeper(frames, count):
    return deeper(frames - 1, count) if frames else pairs(count)


print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "pairs" in request:
        # With the frames of this module, of `pairs` and one of `deeper`.
        print(json.dumps({"nanoseconds": deeper(27, request["pairs"])}), flush=True)
        continue
    enabled = "all" if request["history"] else None
    torch.cuda.memory._record_memory_history(enabled, stacks="python", max_entries=10_000)
    print(json.dumps({"history": request["history"]}), flush=True)
