"""A list with None in it is what the model returns."""

from torch import nn
from torch.nn import functional as F


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.heads = nn.ModuleList(nn.Linear(6, 5) for _ in range(2))

    def forward(self, x):
        parts = []
        for i, layer in enumerate(self.layers):
            x = layer(x).relu()
            parts.append(self.heads[i // 2](x) if i % 2 else None)
        return parts


def loss(outputs, targets):
    return sum(F.cross_entropy(each, targets) for each in outputs if each is not None)
