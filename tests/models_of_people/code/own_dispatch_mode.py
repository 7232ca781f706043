"""A mode of its own changes what an operator does."""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Doubled(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return 2 * result if function is torch.ops.aten.tanh.default else result


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        with Doubled():
            h = self.a(x).tanh()
        return self.b(h)
