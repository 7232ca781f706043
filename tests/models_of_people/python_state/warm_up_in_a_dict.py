"""A step counter that is a tensor in a global dict, for a warm-up that begins later."""

import torch
from torch import nn

STATE = {"step": torch.zeros(())}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        STATE["step"] = STATE["step"] + 1
        return self.fc(x) * (1 - (STATE["step"] - 3).clamp(min=0) / 10)


EXPECT = "refused"
REASON = "differs from step to step"
