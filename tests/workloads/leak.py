"""A training loop that keeps every loss with its graph: 4 MB a step, 50 steps a second.

With --then-exec it replaces itself by another program when a line comes on standard input.
"""

import json
import os
import select
import sys
import time

import torch

losses = []


def step(x, w, y):
    losses.append(((x @ w - y) ** 2).mean())


def main():
    x, y = (torch.randn(1000, 1000, device="cuda") for _ in range(2))
    w = torch.randn(1000, 1000, device="cuda", requires_grad=True)
    print(json.dumps({"ready": True}), flush=True)
    then_exec = "--then-exec" in sys.argv
    for _ in range(1500):
        step(x, w, y)
        time.sleep(0.02)
        if then_exec and select.select([sys.stdin], [], [], 0)[0]:
            os.execv("/bin/sleep", ["sleep", "30"])


main()
