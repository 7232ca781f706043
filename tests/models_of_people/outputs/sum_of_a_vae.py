"""The textbook VAE: both terms are sums over samples, and it draws."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.models_of_people.data import vectors


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(20, 8), nn.Linear(4, 20)

    def forward(self, x):
        mu, logvar = self.encode(x).chunk(2, dim=1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.decode(z), mu, logvar, x


def loss(outputs, _):
    decoded, mu, logvar, x = outputs
    return F.mse_loss(decoded, x, reduction="sum") - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


batch = vectors(20)
RANDOM = True
