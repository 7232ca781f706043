"""Targets computed by a decorated method; `set_grad_enabled` by a flag for the rest."""

import torch
from torch import nn
from torch.nn import functional as F


class SelfTargets(nn.Module):
    def __init__(self, tune=False):
        super().__init__()
        self.tune = tune
        self.base, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    @torch.no_grad()
    def soft_targets(self, logits):
        p = logits.softmax(-1) ** 2
        return p / p.sum(-1, keepdim=True)

    def forward(self, x):
        with torch.set_grad_enabled(self.tune):
            h = self.base(x).relu()
        logits = self.head(h)
        return logits, self.soft_targets(logits)


def loss(outputs, targets):
    logits, soft = outputs
    return F.cross_entropy(logits, targets) + F.kl_div(logits.log_softmax(-1), soft, reduction="batchmean")
