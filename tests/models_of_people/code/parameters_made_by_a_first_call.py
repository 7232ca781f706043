"""The same, with a call before training: then it is an ordinary model."""

import torch
from torch import nn


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter("weight", None)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        if self.weight is None:
            self.weight = nn.Parameter(torch.randn(x.shape[1], 8))
        return self.head(x @ self.weight)


def build():
    model = Late()
    model(torch.zeros(1, 6))
    return model
