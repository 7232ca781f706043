"""A deque that fills up."""

import collections

from tests.models_of_people.bases import Scaled


class M(Scaled):
    def init(self):
        self.q = collections.deque(maxlen=3)

    def scale(self):
        self.q.append(1)
        return 2.0 if len(self.q) == 3 else 1.0


EXPECT = "refused"
REASON = "q|state"
