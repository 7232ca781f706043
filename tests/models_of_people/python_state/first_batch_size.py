"""The size of the first batch scales all others: in micro-batches it would be another."""

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    n = None

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        if self.n is None:
            self.n = x.shape[0]
        return self.fc(x) * self.n / 8


def build():
    return Net()


loss = nn.CrossEntropyLoss()
batch = vectors(6)
EXPECT = "refused"
REASON = "keeps 'n' of the model.*8 samples.*4 samples"
