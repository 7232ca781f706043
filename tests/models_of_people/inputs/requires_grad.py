"""A batch of inputs that require a gradient."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x):
        return self.layer(x) * (2 if x.requires_grad else 1)


def given(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 6, generator=generator)
    return x.requires_grad_(), torch.randint(0, 5, (8,), generator=generator)


batch = given
EXPECT = "refused"
REASON = "batch tensor of shape .* requires a gradient"
