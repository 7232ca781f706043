"""A scripted submodule that branches on a value."""

import warnings

import torch
from torch import Tensor, nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.mean() > 0):
            x = x * 2
        return self.fc(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.gate = torch.jit.script(Gate())
        self.stem, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.gate(self.stem(x)))


EXPECT = "refused"
REASON = "Gate is TorchScript"
