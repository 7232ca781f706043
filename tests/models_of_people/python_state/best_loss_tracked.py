"""The loss object keeps the best value so far, as a Python number, for its own early stopping."""

from torch import nn
from torch.nn import functional as F


class Tracking:
    def __init__(self):
        self.best = float("inf")

    def __call__(self, outputs, targets):
        value = F.cross_entropy(outputs, targets)
        if value.item() < self.best:
            self.best = value.item()
        return value


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))


loss = Tracking()
EXPECT = "either"
REASON = "item|value|data-dependent|state"
