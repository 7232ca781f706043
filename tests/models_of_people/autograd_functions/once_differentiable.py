"""A backward in NumPy-like code that cannot be differentiated again."""

import torch
from torch import nn
from torch.autograd.function import once_differentiable


class ExpClamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp(max=2.0).exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        out = grad * y
        out.masked_fill_(x > 2.0, 0.0)
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 6)
        self.down = nn.Linear(6, 5)

    def forward(self, x):
        return self.down(ExpClamped.apply(self.up(x)).log1p())
