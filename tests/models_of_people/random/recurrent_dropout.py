"""nn.LSTM with dropout between its layers, and attention with dropout."""

from torch import nn

from tests.models_of_people.data import sequences


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 8, num_layers=2, dropout=0.3, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        h, _ = self.rnn(x)
        h, _ = self.attention(h, h, h, need_weights=False)
        return self.fc(h.mean(1))


batch = sequences()
RANDOM = True
