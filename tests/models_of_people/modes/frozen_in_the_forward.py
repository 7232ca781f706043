"""The forward freezes a layer."""

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
        def forward(self, x):
            self.a.requires_grad_(False)
            return super().forward(x)

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "either"
REASON = "requires_grad"
