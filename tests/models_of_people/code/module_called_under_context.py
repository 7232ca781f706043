"""Context managers of one's own, a profiler's record_function and a default device in the forward."""

from contextlib import contextmanager

import torch
from torch import nn
from torch.profiler import record_function


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = 1.0
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    @contextmanager
    def amplified(self, by):
        before, self.gain = self.gain, by
        yield
        self.gain = before

    def hidden(self, x):
        return self.a(x).relu() * self.gain

    def forward(self, x):
        with self.amplified(3.0), record_function("hidden"):
            h = self.hidden(x)
        with torch.device("cpu"):
            shift = torch.zeros(5)
        return self.b(h + self.hidden(x)) + shift
