"""A full queue of the last outputs, whose oldest is read: nothing changes in size."""

from collections import deque

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.queue = deque([torch.zeros(5)] * 4, maxlen=4)

    def forward(self, x):
        y = self.fc(x)
        self.queue.append(y.detach().mean(0))
        return y - self.queue[0]


EXPECT = "refused"
REASON = "differs from step to step"
