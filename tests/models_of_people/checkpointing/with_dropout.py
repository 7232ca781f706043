"""Checkpointing with dropout inside: the second forward must draw what the first drew."""

from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, 6))
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        return self.head(x + checkpoint(self.block, x, use_reentrant=False))


RANDOM = True
