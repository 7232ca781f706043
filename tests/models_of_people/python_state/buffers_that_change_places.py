"""Two buffers that swap roles at every step, as double buffers do."""

import torch
from torch import nn


class Swapping(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.register_buffer("front", torch.ones(5))
        self.register_buffer("back", torch.full((5,), 0.25))

    def forward(self, x):
        y = self.fc(x) * self.front.clone() + self.back
        self.front, self.back = self.back, self.front
        return y
