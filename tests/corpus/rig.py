"""What every program of the corpus runs on (README.md): waits for the tracer, and says what it really held."""

import json
import sys
import time

import torch
from torch import nn

held = []


def say(answer):
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()


def ready():
    torch.zeros(1, device="cuda")
    say({"ready": True})


def step(pause=0.02):
    """One repetition is over."""
    held.append(torch.cuda.memory_allocated())
    time.sleep(pause)


def done():
    say({"done": True, "allocated": held + [torch.cuda.memory_allocated()]})


class Net(nn.Module):
    def __init__(self, layers=6, width=256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def batch(rows=256, width=256):
    return torch.randn(rows, width, device="cuda")
