"""Trained in eval mode, as some fine-tune: BatchNorm by its running statistics, no dropout."""

from torch import nn

from tests.models_of_people.data import images


def build():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 5)
    )
    return model.eval()


batch = images()
