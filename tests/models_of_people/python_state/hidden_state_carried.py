"""A recurrent net that carries its hidden state to the next batch, detached."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 8, batch_first=True)
        self.fc = nn.Linear(8, 5)
        self.hidden = None

    def forward(self, x):
        if self.hidden is None:
            self.hidden = torch.zeros(1, x.shape[0], 8)
        out, hidden = self.rnn(x, self.hidden)
        self.hidden = hidden.detach()
        return self.fc(out[:, -1])


batch = sequences()
EXPECT = "refused"
REASON = "hidden|state|chang|attribute"
