"""Calls counted by itertools.count."""

import itertools

from tests.models_of_people.bases import Scaled


class M(Scaled):
    def init(self):
        self.it = itertools.count()

    def scale(self):
        return 2.0 if next(self.it) > 3 else 1.0


EXPECT = "refused"
REASON = "it|state"
