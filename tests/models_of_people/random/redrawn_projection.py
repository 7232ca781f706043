"""A random projection that a buffer holds and every second call draws anew, as Performer's."""

import torch
from torch import nn


class Projected(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 8)
        self.head = nn.Linear(8, 5)
        self.register_buffer("projection", torch.randn(8, 8))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        self.calls += 1
        fresh = torch.linalg.qr(torch.randn(8, 8)).Q
        self.projection.copy_(torch.where(self.calls % 2 == 0, fresh, self.projection))
        return self.head((self.layer(x) @ self.projection).relu())


RANDOM = True
EXPECT = "refused"
REASON = "two micro-batches in flight.*the forward overwrites"
