"""A generator and a discriminator in one module, trained by one loss with a detached branch."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import pairs


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))

    def forward(self, z, real):
        fake = self.generator(z)
        frozen = [p.requires_grad_(False) for p in self.discriminator.parameters()]
        fooled = self.discriminator(fake)
        for p in frozen:
            p.requires_grad_(True)
        return fooled, self.discriminator(fake.detach()), self.discriminator(real)


def loss(outputs):
    fooled, fake, real = outputs
    ones = torch.ones_like(real)
    judged = F.binary_cross_entropy_with_logits(real, ones) + F.binary_cross_entropy_with_logits(
        fake, 0 * ones
    )
    return judged + F.binary_cross_entropy_with_logits(fooled, ones)


batch = pairs()
EXPECT = "either"
REASON = "requires_grad"
