"""functools.partial of a function as the loss, with label smoothing and a weight inside."""

from functools import partial

import torch
from torch import nn


def smooth(outputs, targets, *, eps, weight):
    n = outputs.shape[-1]
    soft = torch.full_like(outputs, eps / (n - 1)).scatter_(1, targets[:, None], 1 - eps)
    return -(soft * outputs.log_softmax(-1) * weight).sum(-1).mean()


def build():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))


loss = partial(smooth, eps=0.1, weight=torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0]))
