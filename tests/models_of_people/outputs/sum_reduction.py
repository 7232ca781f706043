"""A loss with reduction="sum": that of the batch is the sum of its micro-batches', not their mean."""

from torch import nn

from tests.models_of_people.data import regression


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


loss = nn.MSELoss(reduction="sum")
batch = regression()
EXPECT = "refused"
REASON = "sum over the samples.*2 times as large.*reduction='mean'"
