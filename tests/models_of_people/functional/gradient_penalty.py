"""WGAN-GP: the gradient of the critic with create_graph, in the loss."""

import torch
from torch import nn

from tests.models_of_people.data import pairs


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))

    def forward(self, real, fake):
        between = (0.5 * real + 0.5 * fake).detach().requires_grad_(True)
        return self.net(real), self.net(fake), self.net(between), between


def loss(outputs):
    real, fake, score, between = outputs
    (slope,) = torch.autograd.grad(score.sum(), between, create_graph=True)
    return fake.mean() - real.mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()


batch = pairs()
EXPECT = "either"
REASON = "autograd.grad|create_graph|higher|double"
