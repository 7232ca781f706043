"""Plain dropout in two places."""

from torch import nn


def build():
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(16, 5),
    )


RANDOM = True
