"""A branch by shapes, which are known when the model is captured."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import images


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, 5)

    def forward(self, x):
        h, w = x.shape[-2:]
        if h % 3 != 0 or w % 3 != 0:
            x = F.pad(x, (0, -w % 3, 0, -h % 3))
        if torch.numel(x) > 10**6 or x.dim() != 4:
            raise ValueError("too large")
        return self.fc(self.conv(x).relu().flatten(2).mean(-1))


batch = images()
