"""The forward writes its own input: the caller's batch is changed."""

from torch import nn


class Rude(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        x -= x.mean(0)
        return self.fc(x)
