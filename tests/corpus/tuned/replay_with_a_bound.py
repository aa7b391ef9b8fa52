# expect: {"leaks": false}
import torch
from torch import nn

import rig

from collections import deque


def main():
    net = rig.Net().cuda()
    replay = deque(maxlen=30)
    rig.ready()
    for _ in range(200):
        state = rig.batch()
        replay.append(state)
        with torch.no_grad():
            net(state)
        rig.step()
    rig.done()


main()
