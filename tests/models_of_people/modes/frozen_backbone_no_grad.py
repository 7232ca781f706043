"""Linear probing: the backbone runs in eval mode under no_grad."""

import torch
from torch import nn

from tests.models_of_people.data import images


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.backbone.eval()
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        with torch.no_grad():
            h = self.backbone(x).flatten(1)
        return self.head(h)


batch = images()
