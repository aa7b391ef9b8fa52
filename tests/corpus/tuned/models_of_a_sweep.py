# expect: {"leaks": true, "growing_any_of": ["net = rig.Net().cuda()"], "may_grow": ["optimizer.step()"]}
import torch
from torch import nn

import rig

def main():
    models = []
    rig.ready()
    for rate in [0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001]:
        net = rig.Net().cuda()
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        for _ in range(20):
            optimizer.zero_grad()
            net(rig.batch()).sum().backward()
            optimizer.step()
            rig.step()
        optimizer.zero_grad()
        models.append(net)
    rig.done()


main()
