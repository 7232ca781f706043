"""A backward hook that only looks: the norms of all gradients go into a list."""

from torch import nn

NORMS = []


def look(module, grad_input, grad_output):
    NORMS.append(grad_output[0].norm())


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    for module in model:
        module.register_full_backward_hook(look)
    return model


EXPECT = "either"
REASON = "hook|NORMS|state in Python"
