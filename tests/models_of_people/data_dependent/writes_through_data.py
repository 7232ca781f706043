"""A module kept whole writes into its argument through ``.data``, which counts no write."""

from torch import nn


class Damp(nn.Module):
    """Stays whole, as it goes by a value."""

    def forward(self, x):
        if x.sum().item() > 1e9:
            return x
        x.data.mul_(0.5)
        return 2 * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.piece, self.b, self.head = nn.Linear(6, 12), Damp(), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x):
        h = self.a(x).view(len(x), 3, 4)
        h = h * 1
        y = self.piece(h)
        return self.head(h.flatten(1) + y.flatten(1))
