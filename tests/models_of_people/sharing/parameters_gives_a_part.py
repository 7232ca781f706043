"""Its own parameters() gives the adapter alone; the base asks for gradients all the same."""

from collections.abc import Iterator

import torch
from torch import nn

from tests.models_of_people.data import vectors

EXPECT = "refused"
REASON = r"parameters\(\) of Adapted.* leaves out 'base.weight'.*requires_grad_\(False\)"


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.adapter = nn.Linear(6, 5)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self.adapter.parameters(recurse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x)


build, loss, batch = Adapted, nn.CrossEntropyLoss(), vectors()
