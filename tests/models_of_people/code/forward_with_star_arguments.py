"""Arguments passed through *args and **kwargs, defaults that are tensors, keyword-only flags."""

import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x, shift=torch.tensor(0.25), *, negate=False, **unused):  # noqa: B008
        y = self.fc(x + shift)
        return -y if negate else y


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, *args, **kwargs):
        return self.inner(*args, negate=True, note="nothing", **kwargs)
