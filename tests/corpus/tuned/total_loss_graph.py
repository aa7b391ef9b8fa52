# expect: {"leaks": true, "growing_any_of": ["x = torch.relu(layer(x))"], "may_grow": ["torch.randn(rows, width", "total = total + ", "loss = "]}
import torch
from torch import nn

import rig

def main():
    net = rig.Net(layers=3).cuda()
    rig.ready()
    total = torch.zeros((), device="cuda")
    for _ in range(200):
        loss = net(rig.batch()).pow(2).mean()
        total = total + loss
        rig.step()
    rig.done()


main()
