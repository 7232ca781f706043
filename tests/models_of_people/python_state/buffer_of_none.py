"""A buffer that is None until the first forward."""

from tests.models_of_people.bases import Base


class M(Base):
    def init(self):
        self.register_buffer("m", None)

    def forward(self, x):
        if self.m is None:
            self.m = x.detach().mean(0)
        else:
            self.m = 0.9 * self.m + 0.1 * x.detach().mean(0)
        return super().forward(x - self.m)


EXPECT = "either"
REASON = "creates the buffer"
