# expect: {"leaks": true, "growing_any_of": ["history.append(torch.empty(256, 512"], "may_grow": []}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    history = []
    rig.ready()
    for step in range(320):
        optimizer.zero_grad()
        net(rig.batch()).sum().backward()
        optimizer.step()
        if step % 40 == 0:
            history.append(torch.empty(256, 512, device="cuda"))
        rig.step()
    rig.done()


main()
