"""A loss that is an object and counts its calls."""

from torch.nn import functional as F

from tests.models_of_people.bases import Scaled


def build():

    class L:
        def __init__(self):
            self.n = 0

        def __call__(self, o, y):
            self.n += 1
            return F.cross_entropy(o, y) * (2.0 if self.n > 3 else 1.0)

    return (Scaled(), L())


EXPECT = "refused"
REASON = "state|n"
