"""A hypernetwork: the weights of the main net are made from the input, by functional_call."""

import torch
from torch import nn
from torch.func import functional_call


class Hyper(nn.Module):
    def __init__(self):
        super().__init__()
        self.task = nn.Parameter(torch.randn(4))
        self.main = nn.Linear(6, 5)
        for p in self.main.parameters():
            p.requires_grad_(False)
        self.shapes = {k: p.shape for k, p in self.main.named_parameters()}
        self.makers = nn.ModuleDict({k: nn.Linear(4, p.numel()) for k, p in self.main.named_parameters()})

    def forward(self, x):
        weights = {k: self.makers[k](self.task).view(shape) for k, shape in self.shapes.items()}
        return functional_call(self.main, weights, (x,))
