"""A subclass whose `+` is not torch's: names are lost on the way, the meaning must not be."""

import torch
from torch import nn


class LogTensor(torch.Tensor):
    """Holds logarithms: adding is logaddexp."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.add, torch.Tensor.add, torch.Tensor.__add__):
            plain = [a.as_subclass(torch.Tensor) for a in args[:2]]
            return torch.logaddexp(*plain).as_subclass(cls)
        return super().__torch_function__(func, types, args, kwargs or {})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        total = self.a(x).as_subclass(LogTensor) + self.b(x).as_subclass(LogTensor)
        return self.c(total.as_subclass(torch.Tensor))


EXPECT = "either"
REASON = "LogTensor|subclass"
