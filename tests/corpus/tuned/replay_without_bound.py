# expect: {"leaks": true, "growing_any_of": ["torch.randn(rows, width"], "may_grow": []}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    replay = {}
    rig.ready()
    for step in range(150):
        state = rig.batch(64)
        replay[step] = state
        with torch.no_grad():
            net(state)
        rig.step()
    rig.done()


main()
