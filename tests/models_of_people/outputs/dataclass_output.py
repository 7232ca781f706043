"""The model returns a dataclass, in which some parts are None."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor | None = None
    attentions: tuple | None = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x).relu()
        return Output(logits=self.b(h), hidden=h)


def loss(output, targets):
    return F.cross_entropy(output.logits, targets) + 0.01 * output.hidden.square().mean()
