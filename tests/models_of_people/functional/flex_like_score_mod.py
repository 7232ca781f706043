"""Attention whose scores are changed by a user's function under vmap."""

import torch
from torch import nn
from torch.func import vmap

from tests.models_of_people.data import sequences


def alibi(score, q, k):
    return score - 0.3 * (q - k).abs()


class Attention(nn.Module):
    def __init__(self, score_mod=alibi):
        super().__init__()
        self.score_mod = score_mod
        self.qkv, self.fc = nn.Linear(6, 18), nn.Linear(6, 5)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(x.shape[1])
        mod = vmap(vmap(vmap(self.score_mod, (0, None, 0)), (0, 0, None)), (0, None, None))
        return self.fc((mod(q @ k.mT, at, at).softmax(-1) @ v).mean(1))


batch = sequences()
EXPECT = "either"
REASON = "vmap|func"
