# expect: {"leaks": true, "growing_any_of": ["x = torch.relu(layer(x))", "kept.append(output.detach().clone())"], "may_grow": ["torch.randn(rows, width"]}
import torch
from torch import nn

import rig

def main():
    net = rig.Net().cuda()
    kept = []

    def keep(module, inputs, output):
        kept.append(output.detach().clone())

    net.layers[2].register_forward_hook(keep)
    rig.ready()
    for _ in range(150):
        with torch.no_grad():
            net(rig.batch())
        rig.step()
    rig.done()


main()
