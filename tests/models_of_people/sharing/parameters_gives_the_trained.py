"""Its own parameters() gives those that ask for gradients."""

from collections.abc import Iterator

import torch
from torch import nn

from tests.models_of_people.data import vectors


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.adapter = nn.Linear(6, 5)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return (p for p in super().parameters(recurse) if p.requires_grad)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x)


build, loss, batch = Adapted, nn.CrossEntropyLoss(), vectors()
