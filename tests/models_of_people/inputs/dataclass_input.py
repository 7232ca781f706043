"""A dataclass as the one argument."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Graphs:
    nodes: Tensor
    adjacency: Tensor
    scale: float = 0.5


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 5)

    def forward(self, graphs):
        degree = graphs.adjacency.sum(-1, keepdim=True) + 1
        h = (self.a(graphs.adjacency @ graphs.nodes / degree) * graphs.scale).relu()
        return self.b(graphs.adjacency @ h / degree).mean(1)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    adjacency = (torch.rand(8, 6, 6, generator=g) > 0.5).to(torch.get_default_dtype())
    return Graphs(torch.randn(8, 6, 4, generator=g), adjacency), torch.randint(0, 5, (8,), generator=g)


EXPECT = "either"
REASON = "Graphs|dataclass|batch"
