"""MAML: one inner step with create_graph, the loss after it."""

import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.models_of_people.data import regression


class Maml(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, y):
        half = len(x) // 2
        weights = dict(self.net.named_parameters())
        inner = F.mse_loss(functional_call(self.net, weights, (x[:half],)), y[:half])
        grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        weights = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
        return F.mse_loss(functional_call(self.net, weights, (x[half:],)), y[half:])


loss = None


def batch(seed):
    return regression()(seed), None


EXPECT = "either"
REASON = "autograd.grad|create_graph|higher|double"
