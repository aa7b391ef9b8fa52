# expect: {"leaks": false}
import torch
from torch import nn

import rig

import time


def main():
    rig.ready()
    layers = []
    for width in range(60):
        layers.append(nn.Linear(256, 256 + width, device="cuda"))
        rig.step(0.001)
    time.sleep(3)
    rig.done()


main()
