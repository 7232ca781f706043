"""An input made a leaf in the forward: `x.requires_grad_()`, so that hooks and grads work."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 5))

    def forward(self, x):
        x = x.detach().clone().requires_grad_(True)
        return self.net(x)
