"""Modules in a plain Python list: PyTorch does not know their parameters, and no optimiser sees them."""

from torch import nn


class Forgotten(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6) for _ in range(2)]
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


EXPECT = "either"
REASON = "layers|list|registered|parameter"
