"""The task's name is another one from batch to batch: what was captured is not what comes."""

import torch
from torch import nn


class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.heads = nn.ModuleDict({"even": nn.Linear(8, 5), "odd": nn.Linear(8, 5)})

    def forward(self, x, task):
        return self.heads[task](self.body(x).relu())


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    task = "odd" if seed % 2 else "even"
    return (torch.randn(8, 6, generator=g), task), torch.randint(0, 5, (8,), generator=g)


EXPECT = "refused"
REASON = "odd|even|str|batch|captured"
