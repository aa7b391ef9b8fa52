# expect: {"leaks": false}
import torch
from torch import nn

import rig

def main():
    rig.ready()
    for rate in [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]:
        net = rig.Net().cuda()
        optimizer = torch.optim.Adam(net.parameters(), lr=rate)
        for _ in range(25):
            optimizer.zero_grad()
            net(rig.batch()).sum().backward()
            optimizer.step()
            rig.step()
    rig.done()


main()
