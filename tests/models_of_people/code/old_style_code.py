"""Code from PyTorch 0.3: Variable, volatile-like volatility, cuda flags, type() and expand_as."""

import torch
from torch import nn
from torch.autograd import Variable

from tests.models_of_people.data import sequences


class Old(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.RNN(6, 8, batch_first=True), nn.Linear(8, 5)

    def init_hidden(self, n):
        h = Variable(torch.zeros(1, n, 8))
        if torch.cuda.is_available() and next(self.parameters()).is_cuda:
            h = h.cuda()
        return h.type(next(self.parameters()).type())

    def forward(self, x):
        out, h = self.rnn(x, self.init_hidden(x.size(0)))
        attention = nn.functional.softmax(out.sum(2), dim=1).unsqueeze(2).expand_as(out)
        return self.fc((out * attention).sum(1).view(x.size(0), -1) + h.squeeze(0))


batch = sequences()
