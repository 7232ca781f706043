"""The whole model wrapped by torch.compile: names begin with _orig_mod."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    return torch.compile(model, backend="eager")


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "either"
REASON = "compile"
