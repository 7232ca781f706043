"""A generator of the operating system within reach that the forward does not use."""

import random

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.seeds = random.SystemRandom()

    def forward(self, x):
        return self.fc(x)


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "equal"
