"""A loss of shape [1], which backward accepts."""

from torch import nn

from tests.models_of_people.data import regression


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))


def loss(outputs, targets):
    return (outputs - targets).abs().mean(0)


batch = regression()
EXPECT = "either"
REASON = "scalar"
