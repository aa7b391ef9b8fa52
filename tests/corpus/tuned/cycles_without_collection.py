# expect: {"leaks": true, "growing_any_of": ["torch.randn(rows, width", "x = torch.relu(layer(x))"], "may_grow": []}
import torch
from torch import nn

import rig

import gc


class Request:
    def __init__(self, data):
        self.data = data
        self.itself = self


def main():
    gc.disable()
    net = rig.Net().cuda()
    rig.ready()
    for _ in range(150):
        request = Request(rig.batch())
        with torch.no_grad():
            net(request.data)
        rig.step()
    rig.done()


main()
