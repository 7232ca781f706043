"""An activation of which a part is overwritten under no_grad."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            h[:, :3] = 0.5
        return self.b(h)
