"""A batch whose target is its input, which the forward blanks in part."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        x[:, ::2] = 0.0
        return self.layer(x)


def same(seed):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    return x, x


loss = nn.MSELoss()
batch = same
