"""A net small enough to count by hand, and cases of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from netsplit.data.dataset import Data
from reproduce import ModelCase

SIDE, IN, MID, CLASSES, BATCH = 8, 3, 4, 5, 2


class Counted(nn.Module):
    """Convolution, BatchNorm, the same ReLU twice, their sum, dropout, mean over the image, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(IN, MID, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(MID)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(MID, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        x = self.drop(torch.relu(x) + torch.relu(x))
        return self.head(x.mean((2, 3)))


class Samples:
    """Images of ones, all of class 1."""

    def __len__(self) -> int:
        return 4 * BATCH

    def __getitem__(self, index: int, /) -> tuple[Tensor, ...]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return torch.ones(IN, SIDE, SIDE), torch.tensor(1)


DATA = Data("ones", Samples(), Samples(), CLASSES, tuple(map(str, range(CLASSES))))

FLOAT = 4
IMAGE = BATCH * IN * SIDE * SIDE * FLOAT
MAP = BATCH * MID * SIDE * SIDE * FLOAT
POOLED, SCORES = BATCH * MID * FLOAT, BATCH * CLASSES * FLOAT
CONV, HEAD = MID * IN * 9 * FLOAT, (MID * CLASSES + CLASSES) * FLOAT


def case(batch_size: int = BATCH, **more: object) -> ModelCase:
    return ModelCase(Counted, DATA, batch_size, **more)  # type: ignore[arg-type]
