"""A module's backward hook that halves the gradient towards its input."""

from torch import nn


def halve(module, grad_input, grad_output):
    return tuple(None if g is None else g / 2 for g in grad_input)


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))
    model[2].register_full_backward_hook(halve)
    return model


EXPECT = "either"
REASON = "hook"
