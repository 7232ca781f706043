"""A net taken apart: the head replaced by Identity, a layer deleted, slices of a Sequential put together."""

from torch import nn

from tests.models_of_people.data import images


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *[m for i in range(3) for m in (nn.Conv2d(3 if i == 0 else 4, 4, 3), nn.ReLU())]
        )
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


def build():
    base = Base()
    base.fc = nn.Identity()
    base.features = nn.Sequential(*list(base.features.children())[:-2])
    return nn.Sequential(base, nn.Linear(4, 5))


batch = images()
