"""What is saved for the backward is rounded."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t * 8).round() / 8, lambda t: t):
            h = self.a(x).tanh()
        return self.b(h)
