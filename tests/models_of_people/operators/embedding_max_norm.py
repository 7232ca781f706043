"""nn.Embedding with max_norm: reading it writes the weights in place."""

from torch import nn

from tests.models_of_people.data import tokens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(11, 6, padding_idx=0, max_norm=1.0), nn.Linear(6, 5)

    def forward(self, ids):
        return self.fc(self.embed(ids).mean(1))


batch = tokens()
EXPECT = "refused"
REASON = "leave max_norm out and renormalise the rows after the step"
