# expect: {"leaks": false}
import torch
from torch import nn

import rig

def evaluate(net):
    outputs = []
    with torch.no_grad():
        for _ in range(20):
            outputs.append(net(rig.batch()))
            rig.step()
    return torch.cat(outputs).mean().item()


def main():
    net = rig.Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    rig.ready()
    for _ in range(6):
        for _ in range(15):
            optimizer.zero_grad()
            net(rig.batch()).sum().backward()
            optimizer.step()
            rig.step()
        evaluate(net)
    rig.done()


main()
