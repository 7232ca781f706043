"""Conv3d, pooling in three dimensions with indices and unpooling, depthwise and dilated convolution."""

import torch
from torch import nn


class Volume(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(1, 4, 3, padding=1)
        self.pool, self.unpool = nn.MaxPool3d(2, return_indices=True), nn.MaxUnpool3d(2)
        self.depth = nn.Conv3d(4, 4, 3, padding=2, dilation=2, groups=4)
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        h = self.conv(x).relu()
        small, at = self.pool(h)
        return self.fc((self.unpool(small, at) + self.depth(h)).mean((2, 3, 4)))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 1, 4, 4, 4, generator=g), torch.randint(0, 5, (4,), generator=g)
