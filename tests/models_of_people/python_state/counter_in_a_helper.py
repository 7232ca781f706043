"""A helper counts in a global dictionary."""

from torch import nn

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


COUNTS = {"n": 0}


def helper_global():
    COUNTS["n"] += 1
    return 2.0 if COUNTS["n"] > 3 else 1.0


def build():

    class M(Base):
        def scale(self):
            return helper_global()

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "COUNTS|state"
