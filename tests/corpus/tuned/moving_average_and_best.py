# expect: {"leaks": false}
import torch
from torch import nn

import rig

import copy


def main():
    rig.ready()
    net = rig.Net().cuda()
    average = copy.deepcopy(net)
    best = None
    for step in range(150):
        with torch.no_grad():
            net(rig.batch())
            for mine, own in zip(average.parameters(), net.parameters()):
                mine.mul_(0.99).add_(own * 0.01)
        if step % 25 == 0:
            best = copy.deepcopy(net.state_dict())
        rig.step()
    rig.done()


main()
