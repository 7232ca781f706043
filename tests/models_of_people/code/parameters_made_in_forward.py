"""Parameters made at the first call, as some write who do not know the shape before."""

import torch
from torch import nn


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = None
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        if self.weight is None:
            generator = torch.Generator().manual_seed(0)
            self.weight = nn.Parameter(torch.randn(x.shape[1], 8, generator=generator))
        return self.head(x @ self.weight)


EXPECT = "refused"
REASON = "weight|parameter|first call|made|Generator"
