"""torch.func.grad in the forward: a layer that descends an energy."""

from torch import nn
from torch.func import grad


class Descent(nn.Module):
    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        step = grad(lambda z: self.energy(z).sum())(x)
        return self.fc(x - 0.3 * step)


EXPECT = "either"
REASON = "grad|func|higher"
