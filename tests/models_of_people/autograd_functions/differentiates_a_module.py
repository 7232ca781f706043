"""A function that runs a module again in its backward, and adds to its gradients there."""

import torch
from torch import nn


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.module(x)
        torch.autograd.backward(output, gradient)
        return x.grad, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(Again.apply(self.stem(x), self.inner).tanh())
