"""Dropout2d, AlphaDropout and FeatureAlphaDropout."""

from torch import nn

from tests.models_of_people.data import images


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.SELU(), nn.Dropout2d(0.3),
        nn.Conv2d(8, 4, 3), nn.SELU(), nn.FeatureAlphaDropout(0.2),
        nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(64, 5),
    )  # fmt: skip


batch = images()
RANDOM = True
