# expect: {"leaks": true, "growing_any_of": ["{name: value.clone()"], "may_grow": []}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    checkpoints = []
    rig.ready()
    for epoch in range(8):
        for _ in range(15):
            optimizer.zero_grad()
            net(rig.batch()).sum().backward()
            optimizer.step()
            rig.step()
        checkpoints.append({name: value.clone() for name, value in net.state_dict().items()})
    rig.done()


main()
