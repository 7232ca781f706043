"""A module kept whole returns a tensor and a detached view of it, and one of them is written."""

import torch
from torch import nn


class Pair(nn.Module):
    """Stays whole, as it goes by a value."""

    def forward(self, x):
        if x.sum().item() > 1e9:
            return x, x
        y = 2 * x
        return y, y[:, 1:].detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.piece, self.b, self.head = nn.Linear(6, 12), Pair(), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x):
        h = self.a(x).view(len(x), 3, 4)
        y, seen = self.piece(h)
        before = self.b(y.flatten(1).detach().clone())
        with torch.no_grad():
            y.mul_(0.5)
        return self.head(y.flatten(1) + seen.sum(1).repeat(1, 3) + before)


EXPECT = "refused"  # a write into one of the views is not seen in the other
REASON = "would not train as in plain PyTorch: the loss differs"
