"""BatchNorm with momentum=None: the average over all batches, by its counter."""

from torch import nn

from tests.models_of_people.data import images


def build():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


batch = images()
EXPECT = "either"
REASON = "num_batches_tracked|momentum|value|item|data-dependent"
