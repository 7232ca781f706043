"""Settings come with every batch, and say of themselves that they are equal though they are not."""

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x, settings):
        return self.fc(x) * settings.scale


build = Net


class Epoch:
    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        return isinstance(other, Epoch)

    def __hash__(self):
        return 0


def batch(seed):
    x, y = vectors(6)(seed)
    return (x, Epoch(1.0 + seed)), y
