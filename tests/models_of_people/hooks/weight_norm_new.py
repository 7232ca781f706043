"""weight_norm as a parametrization."""

from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from tests.models_of_people.data import vectors


def build():
    return nn.Sequential(weight_norm(nn.Linear(6, 8)), nn.ELU(), weight_norm(nn.Linear(8, 5), dim=None))


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
