"""A counter in the default argument of a helper."""

from tests.models_of_people.bases import Scaled


def build():

    def tick(memo={"n": 0}):  # noqa: B006
        memo["n"] += 1
        return 2.0 if memo["n"] > 3 else 1.0

    class M(Scaled):
        def scale(self):
            return tick()

    return M()


EXPECT = "refused"
REASON = "default|state"
