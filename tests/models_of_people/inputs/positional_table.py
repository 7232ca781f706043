"""A table of positions handed to the model beside the batch, of another length."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x, table):
        return self.b((self.a(x) + table).relu().mean(1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    table = torch.linspace(-1, 1, 5 * 8).view(5, 8)
    return (torch.randn(8, 5, 6, generator=g), table), torch.randint(0, 5, (8,), generator=g)


EXPECT = "either"
REASON = "samples|batch|length|shape"
