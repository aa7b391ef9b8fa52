# expect: {"leaks": false}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    losses, outputs = [], []
    rig.ready()
    for _ in range(150):
        loss = net(rig.batch()).mean()
        loss.backward()
        losses.append(loss.item())
        outputs.append(net(rig.batch(16)).detach().cpu())
        net.zero_grad()
        rig.step()
    rig.done()


main()
