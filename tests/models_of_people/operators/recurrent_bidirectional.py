"""A two-layer bidirectional LSTM and a GRU, with given first states."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(8, 6, batch_first=True)
        self.h0 = nn.Parameter(torch.zeros(1, 1, 6))
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        self.lstm.flatten_parameters()
        out, _ = self.lstm(x)
        out, last = self.gru(out, self.h0.expand(-1, x.shape[0], -1).contiguous())
        return self.fc(out[:, 0] + last[-1])


batch = sequences()
