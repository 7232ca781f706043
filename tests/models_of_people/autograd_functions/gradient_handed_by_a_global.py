"""Two functions hand a gradient to one another by a global dictionary."""

import torch
from torch import nn

KEPT = {}


class Save(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        KEPT["gradient"] = gradient
        return gradient


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient + KEPT.get("gradient", 0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.head(Save.apply(Add.apply(self.stem(x)).tanh()))


EXPECT = "refused"
REASON = "to one another, which is lost"
