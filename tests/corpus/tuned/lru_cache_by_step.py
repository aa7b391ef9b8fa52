# expect: {"leaks": true, "growing_any_of": ["return torch.full("], "may_grow": []}
import torch
from torch import nn

import rig

import functools


@functools.lru_cache(maxsize=None)
def mask(step):
    return torch.full((256, 256), float(step), device="cuda")


def main():
    net = rig.Net().cuda()
    rig.ready()
    for step in range(150):
        with torch.no_grad():
            net(rig.batch()) * mask(step)
        rig.step()
    rig.done()


main()
