"""Only norms' weights and biases train (as in bit-fit or tent)."""

from torch import nn

from tests.models_of_people.data import images


def build():
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    for module in model:
        module.requires_grad_(isinstance(module, nn.GroupNorm))
    return model


batch = images()
