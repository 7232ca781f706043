"""NumPy for constants only: a window and an index, made in the forward from shapes."""

import numpy as np
import torch
from torch import nn

from tests.models_of_people.data import sequences


class Windowed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        n = x.shape[1]
        window = torch.from_numpy(np.hanning(n)).to(x.dtype)
        order = np.arange(n)[::-1].copy()
        return self.fc((x * window[:, None])[:, order].cumsum(1).mean(1) * float(np.sqrt(2.0)))


batch = sequences()
