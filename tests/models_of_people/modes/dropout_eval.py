"""Dropout switched off for good before training."""

from torch import nn


def build():
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 5))
    for module in model:
        if isinstance(module, nn.Dropout):
            module.eval()
    return model
