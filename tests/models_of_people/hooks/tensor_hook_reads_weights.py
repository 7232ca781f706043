"""A hook reads the weights of another layer."""

from tests.models_of_people.bases import Base


class M(Base):
    def forward(self, x):
        h = self.a(x)
        h.register_hook(lambda g: g * self.b.weight.detach().norm())
        return self.b(h.relu())


EXPECT = "either"
REASON = "hook"
