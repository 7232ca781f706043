"""Two outputs, of which the backward weighs the gradients unlike autograd would."""

import torch
from torch import nn


class SplitSigns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x > 0)
        return x.clamp(min=0), x.clamp(max=0)

    @staticmethod
    def backward(ctx, grad_pos, grad_neg):
        (positive,) = ctx.saved_tensors
        return torch.where(positive, grad_pos, 0.1 * grad_neg)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 7)
        self.pos = nn.Linear(7, 5)
        self.neg = nn.Linear(7, 5)

    def forward(self, x):
        p, n = SplitSigns.apply(self.inner(x))
        return self.pos(p) - self.neg(n)
