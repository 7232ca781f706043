"""BatchNorm1d on three dimensions, without statistics, and without weights."""

from torch import nn

from tests.models_of_people.data import sequences


def build():
    return nn.Sequential(
        nn.BatchNorm1d(5), nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU(),
        nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4, affine=False, momentum=0.3), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


batch = sequences()
