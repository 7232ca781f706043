"""Every second column: a contiguous copy of it is one, and is written."""

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x):
        damped = x.contiguous()
        damped.mul_(0.5)
        return self.a(x) + self.b(damped)


def batch(seed):
    x, y = vectors(12)(seed)
    return x[:, ::2], y
