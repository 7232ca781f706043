"""The hashing trick on names, in a module that stays whole: workers would have other hashes."""

from torch import nn


class Hashed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.names = ("user", "item", "ad")

    def forward(self, x):
        if float(x.detach().abs().max()) > 1e9:
            x = x * 0
        return x + sum(self.table.weight[hash(name) % 7] for name in self.names)


def build():
    return nn.Sequential(nn.Linear(6, 6), Hashed(), nn.Linear(6, 5))


EXPECT = "refused"
REASON = "calls hash\\(\\)"
