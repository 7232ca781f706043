"""A complex number of Python among an operator's arguments, and lazy conjugates that are written."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.head = nn.Linear(6, 12), nn.Linear(12, 5)

    def forward(self, x):
        z = torch.view_as_complex(self.a(x).view(len(x), 6, 2)) * (0.5 + 2j)
        lazy = z.conj()
        made = lazy.resolve_conj()
        made.mul_(0.5j)
        return self.head(torch.view_as_real((lazy + made).resolve_conj()).flatten(1))
