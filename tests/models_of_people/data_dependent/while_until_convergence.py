"""A fixed point by iteration, until it moves no more: a deep equilibrium layer."""

import torch
from torch import nn


class DEQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.w, self.out = nn.Linear(6, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 5)
        with torch.no_grad():
            self.w.weight.mul_(0.4)

    def forward(self, x):
        bias = self.u(x)
        z = torch.zeros_like(bias)
        steps = 0
        while steps < 30:
            new = torch.tanh(self.w(z) + bias)
            steps += 1
            if (new - z).norm() < 1e-4:
                break
            z = new
        return self.out(new)


EXPECT = "either"
REASON = "data-dependent|value|norm|control flow"
