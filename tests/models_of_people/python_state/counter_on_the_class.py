"""A counter on the class."""

from tests.models_of_people.bases import Scaled


class M(Scaled):
    calls = 0

    def scale(self):
        type(self).calls += 1
        return 2.0 if type(self).calls > 3 else 1.0


EXPECT = "refused"
REASON = "calls|state"
