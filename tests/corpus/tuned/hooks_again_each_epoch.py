# expect: {"leaks": true, "growing_any_of": ["kept.append(output.detach().clone())"], "may_grow": ["x = torch.relu(layer(x))"]}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    kept = []

    def keep(module, inputs, output):
        kept.append(output.detach().clone())

    rig.ready()
    for epoch in range(8):
        net.layers[1].register_forward_hook(keep)
        for _ in range(20):
            with torch.no_grad():
                net(rig.batch())
            rig.step()
    rig.done()


main()
