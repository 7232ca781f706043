"""A counter in an object with slots."""

from tests.models_of_people.bases import Scaled


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def tick(self):
        self.n += 1
        return 2.0 if self.n > 3 else 1.0


class M(Scaled):
    def init(self):
        self.s = Slotted()

    def scale(self):
        return self.s.tick()


EXPECT = "refused"
REASON = "state"
