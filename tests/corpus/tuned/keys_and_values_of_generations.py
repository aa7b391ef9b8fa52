# expect: {"leaks": false}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    rig.ready()
    for _ in range(8):
        cache = []
        for _ in range(20):
            with torch.no_grad():
                cache.append(net(rig.batch()))
            rig.step()
    rig.done()


main()
