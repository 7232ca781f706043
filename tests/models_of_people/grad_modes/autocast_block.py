"""An autocast block inside a float32 model, with an island in float32 within it."""

import torch
from torch import nn


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.float()

    def forward(self, x):
        x = x.float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.a(x).relu()
            with torch.autocast("cpu", enabled=False):
                h = self.b(h.float())
            y = self.c(h)
        return y.float()


TOLERANCE = 1e-5  # float32 and bfloat16
