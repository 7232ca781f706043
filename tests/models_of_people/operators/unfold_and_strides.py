"""unfold, as_strided, expand, diagonal, movedim, roll and flips."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Strides(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.fc = nn.Linear(6, 6), nn.Linear(18, 5)

    def forward(self, x):
        h = self.a(x).contiguous()
        windows = h.unfold(1, 3, 1).flatten(2).mean(1)
        b, n, d = h.shape
        every_other = torch.as_strided(h, (b, (n + 1) // 2, d), (n * d, 2 * d, 1))
        h2 = h.movedim(1, 2).roll(1, -1).flip(-1)
        diagonal = torch.diagonal(h2, dim1=1, dim2=2).sum(-1, keepdim=True).expand(-1, 18)
        return self.fc(windows + diagonal + every_other.mean(1).repeat(1, 3))


batch = sequences()
