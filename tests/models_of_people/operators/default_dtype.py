"""The default dtype is set and put back inside the forward."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        scale = torch.arange(1, 7) / 3.0
        torch.set_default_dtype(before)
        return self.fc(x * scale.to(x.dtype))
