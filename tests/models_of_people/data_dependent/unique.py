"""torch.unique over the words of a batch: the table is read once for each."""

import torch
from torch import nn

from tests.models_of_people.data import tokens


class Once(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.deep, self.fc = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, ids):
        words, inverse = torch.unique(ids, return_inverse=True)
        return self.fc(self.deep(self.embed(words)).tanh()[inverse].mean(1))


batch = tokens()
EXPECT = "either"
REASON = "data-dependent|value|unique"
