"""Checkpointing with BatchNorm inside: plain PyTorch updates its statistics twice."""

from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models_of_people.data import images


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.block = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        x = checkpoint(self.block, self.conv(x), use_reentrant=False)
        return self.head(x.flatten(1))


batch = images()
EXPECT = "either"
REASON = "checkpoint|running|statistic|twice"
