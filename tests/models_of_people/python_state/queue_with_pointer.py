"""MoCo's queue of keys: a buffer written at a place that another buffer says."""

import torch
from torch import nn
from torch.nn import functional as F


class Queue(nn.Module):
    def __init__(self, size=16, dim=8):
        super().__init__()
        self.encoder = nn.Linear(6, dim)
        self.register_buffer("queue", F.normalize(torch.randn(dim, size), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enqueue(self, keys):
        n = keys.shape[0]
        ptr = int(self.queue_ptr)
        self.queue[:, ptr : ptr + n] = keys.T
        self.queue_ptr[0] = (ptr + n) % self.queue.shape[1]

    def forward(self, x):
        q = F.normalize(self.encoder(x), dim=1)
        logits = q @ self.queue.clone().detach()
        self.enqueue(q.detach())
        return logits / 0.2


EXPECT = "either"
REASON = "queue_ptr|value|item|data-dependent"
