"""A module that stays whole reads its parent's weights."""

from torch import nn

from tests.models_of_people.bases import Base


def build():

    class C(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.__dict__["p"] = p
            self.l = nn.Linear(6, 6)

        def forward(self, x):
            if x.sum() > 1000000000.0:
                x = x * 0
            return self.l(x) * self.p.a.weight.norm()

    class M(Base):
        def init(self):
            self.c = C(self)

        def forward(self, x):
            return super().forward(self.c(x))

    return M()


EXPECT = "either"
REASON = r"passed to it|elsewhere|stays whole \(C\)"
