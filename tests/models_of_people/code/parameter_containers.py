"""ParameterList and ParameterDict, nested, with a None and a buffer among modules."""

import torch
from torch import nn


class Containers(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(6, 6) * 0.4) for _ in range(3))
        self.named = nn.ParameterDict({"scale": torch.ones(6), "shift": torch.zeros(6)})
        self.unused = nn.Parameter(torch.ones(3))
        self.register_parameter("nothing", None)
        self.register_buffer("empty", None)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        for w in self.weights:
            x = torch.tanh(x @ w) * self.named["scale"] + self.named["shift"]
        return self.fc(x)
