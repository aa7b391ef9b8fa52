# expect: {"leaks": false}
import torch
from torch import nn

import rig

def main():
    rig.ready()
    one, two = rig.Net(3).cuda(), rig.Net(3).cuda()
    first = torch.optim.Adam(one.parameters())
    second = torch.optim.Adam(two.parameters())
    for _ in range(120):
        fake = one(rig.batch())
        second.zero_grad()
        two(fake.detach()).mean().backward()
        second.step()
        first.zero_grad()
        two(fake).mean().backward()
        first.step()
        rig.step()
    rig.done()


main()
