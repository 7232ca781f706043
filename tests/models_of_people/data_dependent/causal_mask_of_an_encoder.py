"""nn.TransformerEncoder asks whether a mask that the forward writes in place is causal."""

import torch
from torch import nn

from tests.models_of_people.data import tokens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(8, 11)

    def forward(self, ids):
        length = ids.shape[1]
        mask = torch.zeros(length, length)
        for i in range(length):
            mask[i, i + 1 :] = float("-inf")
        return self.head(self.encoder(self.embed(ids), mask)).mean(1)


batch = tokens()
