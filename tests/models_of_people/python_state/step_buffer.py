"""The step is a buffer, and the schedule is computed from it with tensor operators: all is in tensors."""

import torch
from torch import nn


class Schedule(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        self.step += 1
        scale = torch.clamp(self.step / 10, max=1.0)
        return self.net(x) * scale
