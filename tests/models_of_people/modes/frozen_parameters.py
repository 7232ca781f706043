"""The first layers are frozen by requires_grad; their BatchNorm still learns its statistics."""

from torch import nn

from tests.models_of_people.data import images


def build():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 5)
    )
    for parameter in model[:2].parameters():
        parameter.requires_grad = False
    return model


batch = images()
