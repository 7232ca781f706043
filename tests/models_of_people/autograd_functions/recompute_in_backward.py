"""A hand-made checkpoint: the backward runs the module again under enable_grad."""

import torch
from torch import nn


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x, *weights):
        ctx.function = function
        ctx.save_for_backward(x)
        ctx.weights = weights
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        return (None, *torch.autograd.grad(y, (x, *ctx.weights), grad))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(Again.apply(self.body, self.stem(x), *self.body.parameters()))


EXPECT = "either"
REASON = "Again|autograd.*function|custom"
