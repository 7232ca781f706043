"""relu_, add_, mul_ and += on activations, and a view written."""

from torch import nn


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x)
        h.relu_()
        h = h + 0
        h += 1.0
        h[:, :4].mul_(0.5)
        y = self.b(h.clone())
        y.add_(h).tanh_()
        return self.c(y)
