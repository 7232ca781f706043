"""`parameter.register_hook` keeps some rows of an embedding as they are."""

import torch
from torch import nn

from tests.models_of_people.data import tokens


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.fc = nn.Linear(6, 5)
        mask = torch.ones(11, 1)
        mask[:4] = 0
        self.embedding.weight.register_hook(lambda grad: grad * mask)

    def forward(self, x):
        return self.fc(self.embedding(x).mean(1))


batch = tokens()
EXPECT = "either"
REASON = "hook"
