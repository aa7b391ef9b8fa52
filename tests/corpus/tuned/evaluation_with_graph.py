# expect: {"leaks": true, "growing_any_of": ["x = torch.relu(layer(x))"], "may_grow": ["torch.randn(rows, width"]}
import torch
from torch import nn

import rig

def evaluate(net, results):
    for _ in range(10):
        results.append(net(rig.batch()))


def main():
    net = rig.Net().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    results = []
    rig.ready()
    for step in range(120):
        optimizer.zero_grad()
        net(rig.batch()).sum().backward()
        optimizer.step()
        if step % 12 == 11:
            evaluate(net, results)
        rig.step()
    rig.done()


main()
