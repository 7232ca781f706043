"""torch.distributions: rsample and a Kullback-Leibler term."""

import torch
from torch import distributions as D
from torch import nn

D.Distribution.set_default_validate_args(False)  # as `torch.compile` does: else it needs values


class Latent(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.out = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 5)

    def forward(self, x):
        q = D.Normal(self.mean(x), nn.functional.softplus(self.spread(x)) + 1e-3)
        z = q.rsample()
        kl = D.kl_divergence(q, D.Normal(torch.zeros(3), torch.ones(3))).sum(-1).mean()
        return self.out(z), kl


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs[0], targets) + 0.01 * outputs[1]


EXPECT = "either"
REASON = "data-dependent|value|control flow"
RANDOM = True
