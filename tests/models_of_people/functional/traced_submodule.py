"""A submodule through torch.jit.trace."""

import warnings

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.body = torch.jit.trace(body, torch.zeros(2, 6))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.body(x).relu())


EXPECT = "either"
REASON = "trace|script|jit"
