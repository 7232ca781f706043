"""The model returns its input beside the result, and a parameter itself."""

from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(3, 6)

    def forward(self, x):
        return self.b(self.a(x).tanh()), x, self.a.weight


def loss(outputs, targets):
    again, x, weight = outputs
    return F.mse_loss(again, x) + 1e-2 * weight.abs().sum()
