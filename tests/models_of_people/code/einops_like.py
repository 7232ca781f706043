"""Patterns in strings taken apart in the forward, einsum with letters made up at run time."""

import string

import torch
from torch import nn

from tests.models_of_people.data import images


class TensorTrain(nn.Module):
    def __init__(self, sides=(3, 8, 8), rank=2):
        super().__init__()
        ranks = (1, rank, rank, 5)
        self.cores = nn.ParameterList(
            nn.Parameter(torch.randn(ranks[i], side, ranks[i + 1]) / side**0.5)
            for i, side in enumerate(sides)
        )

    def forward(self, x):
        letters = iter(string.ascii_letters)
        batch, *axes = (next(letters) for _ in range(x.dim()))
        bonds = [next(letters) for _ in range(len(axes) + 1)]
        operands = [bonds[i] + a + bonds[i + 1] for i, a in enumerate(axes)]
        pattern = f"{batch}{''.join(axes)},{','.join(operands)}->{batch}{bonds[-1]}"
        return torch.einsum(pattern, x, *self.cores)


batch = images()
