"""Energy and forces of atoms: forces are the gradient of the energy by positions, inside the model."""

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, positions):
        positions = positions.requires_grad_(True)
        i, j = torch.triu_indices(5, 5, 1)
        distances = (positions[:, i] - positions[:, j]).norm(dim=-1)
        energy = self.net(distances).squeeze(-1)
        forces = -torch.autograd.grad(energy.sum(), positions, create_graph=True)[0]
        return energy, forces


def loss(outputs, energy, forces):
    return nn.functional.mse_loss(outputs[0], energy) + nn.functional.mse_loss(outputs[1], forces)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    targets = torch.randn(8, generator=g), torch.randn(8, 5, 3, generator=g)
    return torch.randn(8, 5, 3, generator=g), targets


EXPECT = "either"
REASON = "autograd.grad|create_graph|higher|double"
