"""A router that stays whole, and experts registered elsewhere."""

from torch import nn

from tests.models_of_people.bases import Base


def build():

    class C(nn.Module):
        def __init__(self, ls):
            super().__init__()
            self.ls = [*ls]

        def forward(self, x):
            k = x[:, 0] > 0
            out = x.clone()
            out[k] = self.ls[0](x[k])
            out[~k] = self.ls[1](x[~k])
            return out

    class M(Base):
        def init(self):
            self.es = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
            self.c = C(self.es)

        def forward(self, x):
            return super().forward(self.c(x))

    return M()


EXPECT = "either"
REASON = "not use|elsewhere|kept whole"
