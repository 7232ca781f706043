"""A counter in thread-local storage."""

import threading

from tests.models_of_people.bases import Scaled

TL = threading.local()


class M(Scaled):
    def scale(self):
        TL.n = getattr(TL, "n", 0) + 1
        return 2.0 if TL.n > 3 else 1.0


EXPECT = "refused"
REASON = "TL|state"
