"""EmbeddingBag with offsets: a flat list of words for the whole batch, so one micro-batch."""

import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(20, 6, mode="mean"), nn.Linear(6, 5)

    def forward(self, text, offsets):
        return self.fc(self.bag(text, offsets))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, 3, 4, 8, 10, 15, 17, 20])
    return (torch.randint(0, 20, (24,), generator=g), offsets), torch.randint(0, 5, (8,), generator=g)


MICROBATCHES = 1
