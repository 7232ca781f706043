"""Nested tuples and lists of tensors."""

import torch
from torch import nn


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2, 4, 3, padding=1) for _ in range(3))
        self.box, self.fc = nn.Linear(4, 4), nn.Linear(16, 5)

    def forward(self, x):
        maps, (boxes, _) = x
        pooled = [conv(m).relu().mean((2, 3)) for conv, m in zip(self.convs, maps, strict=True)]
        return self.fc(torch.cat([*pooled, self.box(boxes)], 1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    maps = [torch.randn(8, 2, side, side, generator=g) for side in (8, 4, 2)]
    boxes = (torch.randn(8, 4, generator=g), torch.randint(0, 3, (8,), generator=g))
    return ((maps, boxes),), torch.randint(0, 5, (8,), generator=g)
