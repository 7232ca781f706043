"""A counter in an environment variable."""

import os

from tests.models_of_people.bases import Scaled


def build():
    os.environ["ZOO_N"] = "0"

    class M(Scaled):
        def scale(self):
            os.environ["ZOO_N"] = str(int(os.environ["ZOO_N"]) + 1)
            return 2.0 if int(os.environ["ZOO_N"]) > 3 else 1.0

    return M()


EXPECT = "refused"
REASON = "environ|state"
