"""A function that hands no gradient to one of its tensors on purpose."""

import torch
from torch import nn


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gate):
        ctx.save_for_backward(gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        (gate,) = ctx.saved_tensors
        return grad * gate, None


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.value = nn.Linear(6, 8)
        self.gate = nn.Linear(6, 8)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        return self.out(Gate.apply(self.value(x), self.gate(x).sigmoid()))
