# expect: {"leaks": false}
import torch
from torch import nn

import rig

def main():
    rig.ready()
    net = rig.Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for step in range(150):
        (net(rig.batch()).mean() / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        rig.step()
    rig.done()


main()
