"""GoogLeNet-like: a namedtuple with auxiliary logits in training."""

from collections import namedtuple

from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import images

Outputs = namedtuple("Outputs", ["logits", "aux2", "aux1"])


class Inception(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.aux1, self.aux2, self.fc = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(4, 5)

    def forward(self, x):
        x = self.a(x).relu()
        aux1 = self.aux1(x.mean((2, 3))) if self.training else None
        x = self.b(x).relu()
        aux2 = self.aux2(x.amax((2, 3))) if self.training else None
        logits = self.fc(x.mean((2, 3)))
        return Outputs(logits, aux2, aux1) if self.training else logits


def loss(outputs, targets):
    return sum(w * F.cross_entropy(o, targets) for w, o in zip((1.0, 0.3, 0.3), outputs, strict=True))


batch = images()
