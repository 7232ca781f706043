"""A global random.Random decides, seldom."""

import random

from tests.models_of_people.bases import Scaled

GRNG = random.Random(5)


class M(Scaled):
    def scale(self):
        return 2.0 if GRNG.random() > 0.8 else 1.0


EXPECT = "refused"
REASON = "GRNG|state"
