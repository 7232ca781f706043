"""Two tensors of the batch lie in one memory, of which the forward writes one."""

from torch import nn

from tests.models_of_people.data import vectors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.whole, self.first = nn.Linear(6, 5), nn.Linear(3, 5)

    def forward(self, x, first):
        x.mul_(0.5)
        return self.whole(x) + self.first(first)


def batch(seed):
    x, y = vectors(6)(seed)
    return (x, x[:, :3]), y


EXPECT = "refused"
REASON = "which shares memory with another one"
