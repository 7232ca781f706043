"""QuantStub and DeQuantStub, not converted: they do nothing."""

import warnings

import torch
from torch import nn


class Stubbed(nn.Module):
    def __init__(self):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.quant, self.dequant = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, x):
        return self.dequant(self.net(self.quant(x)))
