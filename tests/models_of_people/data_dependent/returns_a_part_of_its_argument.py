"""A module kept whole returns a view of what it is given, and the view is written."""

from torch import nn


class Part(nn.Module):
    """Stays whole, as it goes by a value."""

    def forward(self, x):
        if x.sum().item() > 1e9:
            return x
        return x[:, 1:]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.piece, self.b, self.head = nn.Linear(6, 12), Part(), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x):
        h = self.a(x).view(len(x), 3, 4)
        h = h * 1
        y = self.piece(h)
        y.mul_(0.5)
        return self.head(h.flatten(1) + self.b(h.flatten(1)) + y.sum(1).repeat(1, 3))


EXPECT = "refused"
REASON = "would not train as in plain PyTorch"
