# expect: {"leaks": false}
import torch
from torch import nn

import rig

from collections import deque


def main():
    net = rig.Net().cuda()
    ahead = deque(rig.batch() for _ in range(4))
    rig.ready()
    for _ in range(150):
        ahead.append(rig.batch())
        with torch.no_grad():
            net(ahead.popleft())
        rig.step()
    rig.done()


main()
