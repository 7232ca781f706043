"""A Jacobian penalty by vmap(jacrev) in the forward."""

from torch import nn
from torch.func import jacrev, vmap


class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))

    def forward(self, x):
        jacobian = vmap(jacrev(self.net))(x)
        return self.net(x), jacobian.square().sum((1, 2)).mean()


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs[0], targets) + 0.05 * outputs[1]


EXPECT = "either"
REASON = "vmap|func|jac|higher"
