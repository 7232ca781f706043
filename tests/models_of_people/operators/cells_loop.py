"""LSTMCell and GRUCell in a Python loop, with teacher forcing."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru, self.fc = nn.LSTMCell(6, 8), nn.GRUCell(8, 6), nn.Linear(6, 5)

    def forward(self, x):
        h, c = torch.zeros(x.shape[0], 8), torch.zeros(x.shape[0], 8)
        s = x.new_zeros(x.size(0), 6)
        outputs = []
        for t, step in enumerate(x.unbind(1)):
            h, c = self.lstm(step + (s if t % 2 else 0), (h, c))
            s = self.gru(h, s)
            outputs.append(s)
        return self.fc(torch.stack(outputs, 1).mean(1))


batch = sequences()
