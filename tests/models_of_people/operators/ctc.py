"""Connectionist temporal classification, with lengths."""

import torch
from torch import nn
from torch.nn import functional as F


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.fc(self.rnn(x)[0]).log_softmax(-1)


def loss(logp, targets):
    n, t, _ = logp.shape
    lengths = torch.full((n,), t, dtype=torch.long)
    return F.ctc_loss(logp.transpose(0, 1), targets, lengths, torch.full((n,), targets.shape[1]))


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(8, 9, 6, generator=g), torch.randint(1, 5, (8, 3), generator=g)
