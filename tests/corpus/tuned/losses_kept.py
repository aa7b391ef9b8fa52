# expect: {"leaks": true, "growing_any_of": ["x = torch.relu(layer(x))"], "may_grow": ["torch.randn(rows, width", "losses.append"]}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    rig.ready()
    for _ in range(150):
        x = rig.batch()
        loss = net(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(net(x).pow(2).mean())
        rig.step()
    rig.done()


main()
