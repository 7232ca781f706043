"""Buffers whose names a tool might use: `constant0`, `_tensor_constant0`, `lifted_tensor_0`, `inference`."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        names = ("constant0", "_tensor_constant0", "lifted_tensor_0", "inference", "c_lifted_tensor_0")
        self.names = names
        for i, name in enumerate(names):
            self.register_buffer(name, torch.full((5,), 0.1 * (i + 1)))
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        y = self.fc(x) * torch.tensor([1.0, 2.0, 0.5, 1.5, 1.0])
        for name in self.names:
            y = y + getattr(self, name)
        return y - torch.tensor([0.3, 0.1, 0.0, 0.0, 0.2])
