"""Islands of float32 in a float64 model: a norm and a softmax, and back."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x.to(dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qk, self.fc = Norm(6), nn.Linear(6, 12), nn.Linear(6, 5)

    def forward(self, x):
        q, k = self.qk(self.norm(x)).chunk(2, -1)
        a = (q @ k.mT).softmax(-1, dtype=torch.float32).type_as(x)
        return self.fc((a @ x).mean(1).float().double())


batch = sequences()
TOLERANCE = 1e-6
