"""A variational autoencoder with the reparameterisation trick."""

import torch
from torch import nn
from torch.nn import functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.fc3, self.fc4 = nn.Linear(3, 8), nn.Linear(8, 6)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        return self.fc4(F.relu(self.fc3(self.reparameterize(mu, logvar)))), x, mu, logvar


def loss(outputs, targets):
    again, x, mu, logvar = outputs
    return F.mse_loss(again, x) - 0.005 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()


RANDOM = True
