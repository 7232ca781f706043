"""Integer and boolean tensors among the inputs."""

import torch
from torch import nn


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(7, 4)
        self.fc = nn.Linear(4 + 3, 5)

    def forward(self, kind, missing, values):
        values = torch.where(missing, torch.zeros_like(values), values)
        return self.fc(torch.cat([self.kinds(kind), values], 1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 7, (8,), generator=g, dtype=torch.int32)
    missing = torch.rand(8, 3, generator=g) < 0.3
    return (kind, missing, torch.randn(8, 3, generator=g)), torch.randint(0, 5, (8,), generator=g)
