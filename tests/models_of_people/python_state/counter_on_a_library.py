"""A counter put on a class of the library."""

from torch import nn

nn.Linear.steps = 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        nn.Linear.steps += 1
        return self.fc(x) * (1.0 if nn.Linear.steps < 25 else 0.5)


EXPECT = "refused"
REASON = "'steps' of fc"
