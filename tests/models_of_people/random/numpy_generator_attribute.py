"""A NumPy generator of the model's own decides, seldom."""

import numpy as np
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


def build():

    class M(Base):
        def init(self):
            self.rng = np.random.default_rng(3)

        def scale(self):
            return 2.0 if self.rng.random() > 0.9 else 1.0

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "'rng'"
