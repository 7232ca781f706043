"""Shifted windows: roll, view and permute, a relative position table indexed by a buffer."""

import torch
from torch import nn

from tests.models_of_people.data import images


class Windowed(nn.Module):
    def __init__(self, dim=4, window=4):
        super().__init__()
        self.window = window
        self.stem, self.qkv, self.fc = nn.Conv2d(3, dim, 1), nn.Linear(dim, 3 * dim), nn.Linear(dim, 5)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        relative = at[:, :, None] - at[:, None, :] + window - 1
        self.register_buffer("index", relative[0] * (2 * window - 1) + relative[1])

    def forward(self, x):
        x = self.stem(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        m = self.window
        x = torch.roll(x, (-m // 2, -m // 2), (1, 2))
        x = x.view(b, h // m, m, w // m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, m * m, c)
        q, k, v = self.qkv(x).chunk(3, -1)
        x = (q @ k.mT + self.table[self.index]).softmax(-1) @ v
        x = x.view(b, h // m, w // m, m, m, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return self.fc(torch.roll(x, (m // 2, m // 2), (1, 2)).mean((1, 2)))


batch = images()
