"""A counter in a context variable."""

import contextvars

from tests.models_of_people.bases import Scaled

CV = contextvars.ContextVar("n", default=0)


class M(Scaled):
    def scale(self):
        CV.set(CV.get() + 1)
        return 2.0 if CV.get() > 3 else 1.0


EXPECT = "refused"
REASON = "CV|state"
