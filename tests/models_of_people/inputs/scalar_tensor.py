"""A tensor without dimensions beside the batch: a noise level."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x, sigma):
        return self.net(x / (1 + sigma**2).sqrt())


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 6, generator=g), torch.rand((), generator=g)), torch.randint(
        0, 5, (8,), generator=g
    )


EXPECT = "either"
REASON = "samples|batch|length|shape|dimension"
