# expect: {"leaks": true, "growing_any_of": ["torch.zeros(300, 300"], "may_grow": []}
import torch
from torch import nn

import rig

def main():
    cache = {}
    rig.ready()
    for step in range(100):
        cache[step] = torch.zeros(300, 300, device="cuda")
        rig.step(0.04)
    rig.done()


main()
