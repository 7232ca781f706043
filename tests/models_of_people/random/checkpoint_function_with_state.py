"""A checkpoint Function of one's own, which takes the generator's state and gives it back."""

import torch
from torch import nn
from torch.nn import functional as F


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(x, weight)
        return F.dropout(F.linear(x, weight).tanh(), 0.4)

    @staticmethod
    def backward(ctx, grad):
        x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        before = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = F.dropout(F.linear(x, weight).tanh(), 0.4)
        torch.set_rng_state(before)
        return torch.autograd.grad(y, (x, weight), grad)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.b(self.drop(Again.apply(x, self.a.weight)))


RANDOM = True
