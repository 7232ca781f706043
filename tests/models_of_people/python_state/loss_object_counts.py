"""A loss that is an object and counts its calls."""

from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import vectors


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(6, 8), nn.Linear(8, 5))
        self.extra = nn.Linear(6, 5)
        self.init()

    def init(self):
        pass

    def scale(self):
        return 1.0

    def forward(self, x):
        return self.b(self.a(x).relu()) * self.scale() + 0.1 * self.extra(x)


def build():

    class L:
        def __init__(self):
            self.n = 0

        def __call__(self, o, y):
            self.n += 1
            return F.cross_entropy(o, y) * (2.0 if self.n > 3 else 1.0)

    return (Base(), L())


batch = vectors(6)
EXPECT = "refused"
REASON = "state|n"
