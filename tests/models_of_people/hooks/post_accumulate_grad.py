"""The optimiser inside backward: each parameter steps and drops its gradient in a post-accumulate hook."""

import torch
from torch import nn


def step(parameter):
    with torch.no_grad():
        parameter -= 0.01 * parameter.grad
    parameter.grad = None


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return model


EXPECT = "refused"
REASON = "hook"
