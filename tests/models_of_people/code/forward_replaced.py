"""The forward is replaced from outside: by types.MethodType, and by an attribute."""

import types

from torch import nn


def scaled(self, x):
    return nn.functional.linear(x, self.weight * 0.5, self.bias)


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    model[0].forward = types.MethodType(scaled, model[0])
    inner = model[2].forward
    model[2].forward = lambda x: inner(x) + 1.0
    return model
