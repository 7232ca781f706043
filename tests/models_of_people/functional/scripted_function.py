"""A fused activation by @torch.jit.script, as older repositories have."""

import warnings

import torch
from torch import nn


def _gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    x = x + bias
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    bias_gelu = torch.jit.script(_gelu)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8, bias=False), nn.Linear(8, 5)
        self.bias = nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return self.b(bias_gelu(self.a(x), self.bias))


EXPECT = "either"
REASON = "script|jit"
