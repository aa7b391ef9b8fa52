# expect: {"leaks": false}
import torch
from torch import nn

import rig

import random


def main():
    random.seed(7)
    net = rig.Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rig.ready()
    for step in range(160):
        optimizer.zero_grad()
        rows = random.randrange(32, 512) + step
        net(rig.batch(rows)).sum().backward()
        optimizer.step()
        rig.step()
    rig.done()


main()
