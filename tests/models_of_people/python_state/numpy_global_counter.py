"""A counter in a global NumPy array."""

import numpy as np

from tests.models_of_people.bases import Scaled

NPG = np.zeros(1)


class M(Scaled):
    def scale(self):
        NPG[0] += 1
        return 2.0 if NPG[0] > 3 else 1.0


EXPECT = "refused"
REASON = "NPG|state"
