# expect: {"leaks": false}
import torch
from torch import nn

import rig

import time


def main():
    rig.ready()
    net = rig.Net(layers=100).cuda()
    net = net.half()
    rig.step()
    time.sleep(3)
    rig.done()


main()
