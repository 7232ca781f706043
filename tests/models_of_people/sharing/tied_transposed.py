"""An autoencoder whose decoder is the encoder's transposed weight."""

import torch
from torch import nn
from torch.nn import functional as F


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 4)
        self.bias = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        h = torch.sigmoid(self.encoder(x))
        return F.linear(h, self.encoder.weight.t(), self.bias), x


def loss(outputs, targets):
    return F.mse_loss(*outputs)
