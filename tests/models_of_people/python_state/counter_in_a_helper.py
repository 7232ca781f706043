"""A helper counts in a global dictionary."""

from tests.models_of_people.bases import Scaled

COUNTS = {"n": 0}


def helper_global():
    COUNTS["n"] += 1
    return 2.0 if COUNTS["n"] > 3 else 1.0


class M(Scaled):
    def scale(self):
        return helper_global()


EXPECT = "refused"
REASON = "COUNTS|state"
