"""Both losses of a GAN in one forward, the critic frozen for the second: one operator."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, x):
        made = self.maker(torch.randn(len(x), 4))
        d = F.softplus(-self.critic(x)).mean() + F.softplus(self.critic(made.detach())).mean()
        self.critic.requires_grad_(False)
        g = F.softplus(-self.critic(made)).mean()
        self.critic.requires_grad_(True)
        return d + g, {"d": d.detach()}


def batch(seed):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(seed)), None


loss = None
RANDOM = True
