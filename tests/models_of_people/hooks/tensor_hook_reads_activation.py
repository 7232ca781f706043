"""A hook multiplies by an activation of the same forward."""

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
            h = self.a(x)
            s = h.detach().sigmoid()
            h.register_hook(lambda g: g * s)
            return self.b(h.relu())

    return M()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "either"
REASON = "hook"
