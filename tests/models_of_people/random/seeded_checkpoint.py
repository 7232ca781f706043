"""A checkpointed dropout under a seed of its own: the mask computed again is the first."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            dropped = checkpoint(lambda v: F.dropout(v, 0.5), h, use_reentrant=False)
        return self.b(h + dropped)


EXPECT = "refused"
REASON = "sets torch.s generator"
