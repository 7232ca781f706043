"""torch.masked_select within the loss: hard negatives only."""

import torch
from torch import nn
from torch.nn import functional as F


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))


def loss(outputs, targets):
    each = F.cross_entropy(outputs, targets, reduction="none")
    hard = torch.masked_select(each, each > each.detach().mean())
    return hard.mean()


EXPECT = "either"
REASON = "data-dependent|value|masked_select"
