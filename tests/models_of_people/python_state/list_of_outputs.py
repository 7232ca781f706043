"""Activations go into a list on the module, emptied at each forward."""

import torch
from torch import nn


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6 + 4 * i, 4) for i in range(3))
        self.head = nn.Linear(18, 5)
        self.outputs = []

    def forward(self, x):
        self.outputs = [x]
        for layer in self.layers:
            self.outputs.append(layer(torch.cat(self.outputs, 1)).relu())
        return self.head(torch.cat(self.outputs, 1))
