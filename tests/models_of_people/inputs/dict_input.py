"""One argument, a dict of tensors."""

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(10, 4)
        self.item = nn.Embedding(12, 4)
        self.dense = nn.Linear(3, 4)
        self.out = nn.Linear(12, 1)

    def forward(self, features):
        parts = [self.user(features["user"]), self.item(features["item"]), self.dense(features["dense"])]
        return self.out(torch.cat(parts, 1)).squeeze(1)


loss = nn.BCEWithLogitsLoss()


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    features = {
        "user": torch.randint(0, 10, (8,), generator=g),
        "item": torch.randint(0, 12, (8,), generator=g),
        "dense": torch.randn(8, 3, generator=g),
    }
    return (features,), torch.randint(0, 2, (8,), generator=g).to(torch.get_default_dtype())
