"""One column repeated: a contiguous copy of it is one, and is written."""

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        one = x.contiguous()
        one[:, 0].mul_(0.5)
        return self.a(x) + self.b(one)


def batch(seed):
    x, y = vectors(1)(seed)
    return x.expand(-1, 6), y
