"""A module kept whole returns a transposed tensor, whose contiguous copy is written."""

from torch import nn


class Turn(nn.Module):
    """Stays whole, as it goes by a value."""

    def forward(self, x):
        if x.sum().item() > 1e9:
            return x
        return (2 * x).transpose(1, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.piece, self.b, self.head = nn.Linear(6, 12), Turn(), nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x):
        h = self.a(x).view(len(x), 3, 4)
        y = self.piece(h)
        copy = y.contiguous()
        copy.mul_(0.5)
        return self.head((y + 3 * copy).flatten(1))
