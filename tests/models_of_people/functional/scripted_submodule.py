"""A submodule through torch.jit.script."""

import warnings

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(2):
            x = x + torch.tanh(self.fc(x))
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.block = torch.jit.script(Block())
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.block(self.stem(x)))


EXPECT = "either"
REASON = "script|jit"
