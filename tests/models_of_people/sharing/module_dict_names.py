"""ModuleDict and ParameterDict with spaces, dashes and digits in their keys."""

import torch
from torch import nn


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleDict({
            "top-1 head": nn.Linear(6, 5), "0": nn.Linear(6, 5), "a/b": nn.Linear(6, 5), "é": nn.Linear(6, 5),
        })  # fmt: skip
        self.scales = nn.ParameterDict(
            {"top-1 head": torch.ones(1), "0": torch.ones(1), "a b": torch.ones(5)}
        )

    def forward(self, x):
        out = sum(head(x) for head in self.heads.values())
        return out * self.scales["top-1 head"] + self.scales["a b"] * self.scales["0"]
