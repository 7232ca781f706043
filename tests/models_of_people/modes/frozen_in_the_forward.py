"""The forward freezes a layer."""

from tests.models_of_people.bases import Base


class M(Base):
    def forward(self, x):
        self.a.requires_grad_(False)
        return super().forward(x)


EXPECT = "either"
REASON = "requires_grad"
