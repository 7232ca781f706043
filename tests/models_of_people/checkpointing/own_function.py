"""A checkpoint as diffusion models bring their own: parameters are given, and the code that reads them."""

import torch
from torch import nn


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, length, *args):
        ctx.run, ctx.inputs, ctx.parameters = run, list(args[:length]), list(args[length:])
        with torch.no_grad():
            return ctx.run(*ctx.inputs)

    @staticmethod
    def backward(ctx, gradient):
        inputs = [x.detach().requires_grad_() for x in ctx.inputs]
        with torch.enable_grad():
            output = ctx.run(*[x.view_as(x) for x in inputs])
        return (None, None, *torch.autograd.grad(output, inputs + ctx.parameters, gradient))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return Checkpoint.apply(self.run, 1, x, *self.parameters())

    def run(self, x):
        return x + self.layer(x).tanh()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.one, self.two, self.head = nn.Linear(6, 8), Block(), Block(), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.two(self.one(self.stem(x))))
