"""A counter in a mutable default argument."""

from tests.models_of_people.bases import Scaled


class M(Scaled):
    def forward(self, x, memo=[0]):  # noqa: B006
        memo[0] += 1
        return super().forward(x) * (2.0 if memo[0] > 3 else 1.0)


EXPECT = "refused"
REASON = "default|state"
