"""A loss with reduction="sum": micro-batches that are named train with the mean of theirs."""

from torch import nn

from tests.models_of_people.data import regression


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


loss = nn.MSELoss(reduction="sum")
batch = regression()
