"""F.gumbel_softmax, hard."""

from torch import nn
from torch.nn import functional as F


class Discrete(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.codes, self.b = nn.Linear(6, 7), nn.Linear(7, 8, bias=False), nn.Linear(8, 5)

    def forward(self, x):
        return self.b(self.codes(F.gumbel_softmax(self.a(x), tau=0.7, hard=True)))


RANDOM = True
