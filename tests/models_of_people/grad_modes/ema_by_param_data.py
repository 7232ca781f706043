"""The same with `.data` and a buffer for the shadow."""

import torch
from torch import nn


class Shadowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.register_buffer("shadow", self.fc.weight.data.clone())
        self.out = nn.Linear(16, 5)

    def forward(self, x):
        self.shadow.data.mul_(0.8).add_(0.2 * self.fc.weight.data)
        return self.out(torch.cat([self.fc(x), x @ self.shadow.T], 1).relu())
