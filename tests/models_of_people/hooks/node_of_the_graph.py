"""A hook on the node that made a tensor."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x).tanh()
        h.grad_fn.register_prehook(lambda gradients: tuple(2 * each for each in gradients))
        return self.b(h)
