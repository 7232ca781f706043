"""The whole model wrapped by torch.compile: names begin with _orig_mod."""

import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    return torch.compile(model, backend="eager")


EXPECT = "either"
REASON = "compile"
