"""Checkpointing only in training and only when gradients are wanted, by a flag, as libraries do."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gradient_checkpointing = False
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 5)

    def gradient_checkpointing_enable(self, **kwargs):
        self.gradient_checkpointing = True
        self._run = partial(checkpoint, **kwargs)
        return self

    def forward(self, x):
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                x = x + self._run(layer.__call__, x)
                continue
            x = x + layer(x)
        return self.head(x)


def build():
    return Encoder().gradient_checkpointing_enable(use_reentrant=False)
