"""A buffer that is None until the first forward."""

from torch import nn

from tests.models_of_people.data import vectors


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Linear(6, 8), nn.Linear(8, 5))
        self.init()

    def init(self):
        pass

    def forward(self, x):
        return self.b(self.a(x).relu())


def build():

    class M(Base):
        def init(self):
            self.register_buffer("m", None)

        def forward(self, x):
            if self.m is None:
                self.m = x.detach().mean(0)
            else:
                self.m = 0.9 * self.m + 0.1 * x.detach().mean(0)
            return super().forward(x - self.m)

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "either"
REASON = "makes the buffer"
