"""A counter in a closure changes the scale after the third call."""

from tests.models_of_people.bases import Scaled


def build():
    n = 0

    def tick():
        nonlocal n
        n += 1
        return 2.0 if n > 3 else 1.0

    class M(Scaled):
        def scale(self):
            return tick()

    return M()


EXPECT = "refused"
REASON = "n|state"
