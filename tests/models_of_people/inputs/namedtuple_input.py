"""A namedtuple as the one argument."""

from collections import namedtuple

import torch
from torch import nn

Batch = namedtuple("Batch", "text lengths extra")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(11, 6), nn.Linear(6, 5)

    def forward(self, batch):
        mask = torch.arange(batch.text.shape[1]) < batch.lengths[:, None]
        h = self.embed(batch.text) * mask[..., None]
        return self.fc(h.sum(1) / batch.lengths[:, None] + batch.extra)


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    text = torch.randint(0, 11, (8, 5), generator=g)
    lengths = torch.randint(1, 6, (8,), generator=g)
    return Batch(text, lengths, torch.randn(8, 6, generator=g)), torch.randint(0, 5, (8,), generator=g)
