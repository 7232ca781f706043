"""InstanceNorm with running statistics, GroupNorm, LayerNorm, LocalResponseNorm."""

from torch import nn

from tests.models_of_people.data import images


def build():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU(),
        nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.LocalResponseNorm(2), nn.LayerNorm([4, 4, 4]),
        nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip


batch = images()
