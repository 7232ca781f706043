"""A counter that is a Decimal."""

from decimal import Decimal

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.steps = Decimal(0)

    def forward(self, x):
        self.steps += 1
        return self.fc(x) * (1.0 if self.steps < 25 else 0.5)


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "'steps'"
