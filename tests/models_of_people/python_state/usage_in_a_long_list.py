"""How often each of a thousand slots was used."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.used = [0] * 1000

    def forward(self, x):
        self.used[300] += 1
        return self.fc(x) * (1.0 if self.used[300] < 25 else 0.5)


EXPECT = "refused"
REASON = "'used'"
