"""Randomised leaky ReLU."""

from torch import nn

from tests.models_of_people.data import vectors


def build():
    return nn.Sequential(nn.Linear(6, 12), nn.RReLU(), nn.Linear(12, 5))


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
RANDOM = True
