"""A module that stays whole goes by what its maker wrote on a parameter."""

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))
        self.weight.scale = 2.0  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight * getattr(self.weight, "scale", 1.0)
        return y if y.sum().item() < 1e9 else -y


build, loss, batch = Scaled, nn.CrossEntropyLoss(), vectors()
