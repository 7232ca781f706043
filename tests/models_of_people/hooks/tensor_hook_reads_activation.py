"""A hook multiplies by an activation of the same forward."""

from tests.models_of_people.bases import Base


class M(Base):
    def forward(self, x):
        h = self.a(x)
        s = h.detach().sigmoid()
        h.register_hook(lambda g: g * s)
        return self.b(h.relu())


EXPECT = "either"
REASON = "hook"
