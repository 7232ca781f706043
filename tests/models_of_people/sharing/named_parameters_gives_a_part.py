"""Its own named_parameters() leaves out the base, by name."""

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

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            if "base" not in name:
                yield name, parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x)


build, loss, batch = Adapted, nn.CrossEntropyLoss(), vectors()
