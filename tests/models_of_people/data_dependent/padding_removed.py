"""Unpadding: real tokens of all samples in one flat sequence, and back."""

import torch
from torch import nn


class Unpadded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mlp, self.fc = nn.Embedding(11, 6, padding_idx=0), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, ids):
        h = self.embed(ids)
        flat = torch.nonzero(ids.flatten(), as_tuple=False).flatten()
        packed = self.mlp(h.flatten(0, 1)[flat]).relu()
        out = h.new_zeros(ids.numel(), 6).index_put((flat,), packed)
        return self.fc(out.view_as(h).sum(1))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 11, (8, 5), generator=g)
    lengths = torch.randint(1, 6, (8, 1), generator=g)
    return ids * (torch.arange(5) < lengths), torch.randint(0, 5, (8,), generator=g)


EXPECT = "either"
REASON = "data-dependent|value|nonzero"
