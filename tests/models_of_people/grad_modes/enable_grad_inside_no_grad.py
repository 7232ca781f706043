"""A whole submodule under no_grad, with a part inside that switches gradients on again."""

import torch
from torch import nn


class Prompted(nn.Module):
    def __init__(self):
        super().__init__()
        self.prompt = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 8)

    @torch.no_grad()
    def forward(self, x):
        with torch.enable_grad():
            x = x + self.prompt(x).tanh()
            return self.frozen(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Prompted()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.body(x))
