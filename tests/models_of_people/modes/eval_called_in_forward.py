"""The forward itself switches a frozen encoder to eval mode each time."""

import torch
from torch import nn


class Adapter(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.adapter = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)
        for p in self.encoder.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        self.encoder.eval()
        h = self.encoder(x)
        return self.head(h + torch.tanh(self.adapter(h)))
