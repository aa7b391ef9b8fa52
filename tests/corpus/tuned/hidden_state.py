# expect: {"leaks": true, "growing_any_of": ["torch.tanh(self.step("], "may_grow": ["torch.randn(rows, width", "hidden = "]}
import torch
from torch import nn

import rig

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(512, 256)

    def forward(self, x, hidden):
        return torch.tanh(self.step(torch.cat([x, hidden], dim=1)))


def main():
    cell = Cell().cuda()
    hidden = torch.zeros(256, 256, device="cuda")
    rig.ready()
    for _ in range(200):
        hidden = cell(rig.batch(), hidden)
        rig.step()
    rig.done()


main()
