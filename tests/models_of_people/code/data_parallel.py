"""nn.DataParallel around the model, left from another time: without GPUs it calls the module."""

from torch import nn


def build():
    return nn.DataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)))


EXPECT = "either"
REASON = "DataParallel"
