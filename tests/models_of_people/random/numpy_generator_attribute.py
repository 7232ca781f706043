"""A NumPy generator of the model's own decides, seldom."""

import numpy as np

from tests.models_of_people.bases import Scaled


class M(Scaled):
    def init(self):
        self.rng = np.random.default_rng(3)

    def scale(self):
        return 2.0 if self.rng.random() > 0.9 else 1.0


EXPECT = "refused"
REASON = "'rng'"
