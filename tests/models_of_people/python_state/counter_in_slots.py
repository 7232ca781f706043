"""A counter in an object with slots."""

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


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def tick(self):
        self.n += 1
        return 2.0 if self.n > 3 else 1.0


def build():

    class M(Base):
        def init(self):
            self.s = Slotted()

        def scale(self):
            return self.s.tick()

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "state"
