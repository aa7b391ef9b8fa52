# expect: {"leaks": false}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    rig.ready()
    for _ in range(150):
        optimizer.zero_grad()
        net(rig.batch()).sum().backward()
        optimizer.step()
        rig.step()
    rig.done()


main()
