# expect: {"leaks": true, "growing_any_of": ["x = torch.relu(layer(x))"], "may_grow": ["torch.randn(rows, width"]}
import torch
from torch import nn

import rig

import time


def main():
    net = rig.Net().cuda()
    outputs = []
    rig.ready()
    for _ in range(120):
        outputs.append(net(rig.batch()))
        rig.step(0)
    time.sleep(2)
    rig.done()


main()
