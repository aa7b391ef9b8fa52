# expect: {"leaks": true, "growing_any_of": ["torch.randn(rows, width", "x = torch.relu(layer(x))"], "may_grow": []}
import torch
from torch import nn

import rig

def handle(net):
    x = rig.batch()
    y = net(x)
    raise ValueError(y.shape)


def main():
    net = rig.Net().cuda()
    errors = []
    rig.ready()
    for _ in range(150):
        try:
            handle(net)
        except ValueError as error:
            errors.append(error)
        rig.step()
    rig.done()


main()
