"""Every parameter clips its own gradient by a hook, as many recurrent nets do."""

from torch import nn

from tests.models_of_people.data import sequences


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(6, 8, batch_first=True)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.fc(out[:, -1])


def build():
    model = Net()
    for p in model.parameters():
        p.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    return model


batch = sequences()
EXPECT = "either"
REASON = "hook"
