"""A module that has to stay whole, and holds a lock."""

import threading

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.lock = threading.Lock()

    def forward(self, x):
        with self.lock:
            return self.layer(x * (2 if x.sum().item() > 0 else 1))


EXPECT = "refused"
REASON = "cannot be copied there .cannot pickle"
