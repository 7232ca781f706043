"""An inner loop that calls backward() on a leaf in the forward: adversarial training."""

import torch
from torch import nn
from torch.nn import functional as F


class Adversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x, y):
        delta = torch.zeros_like(x, requires_grad=True)
        value = F.cross_entropy(self.net(x + delta), y)
        (g,) = torch.autograd.grad(value, delta)
        return F.cross_entropy(self.net((x + 0.1 * g.sign()).detach()), y)


loss = None


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 6, generator=g), torch.randint(0, 5, (8,), generator=g)), None


EXPECT = "either"
REASON = "autograd.grad|higher|backward"
