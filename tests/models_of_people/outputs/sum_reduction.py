"""A loss with reduction="sum": a micro-batch's counts by its share of the samples, as in the plain loop."""

from torch import nn

from tests.models_of_people.data import regression


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


loss = nn.MSELoss(reduction="sum")
batch = regression()
EXPECT = "either"
REASON = "sum|mean|reduction"
