"""Seven samples in two micro-batches: four and three."""

from torch import nn

from tests.models_of_people.data import images


def build():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, 5)
    )


batch = images(size=7)
