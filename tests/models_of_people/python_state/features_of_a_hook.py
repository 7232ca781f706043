"""A forward hook leaves features in a dict, which the same forward reads: no state."""

from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.body = nn.Linear(6, 6)
        self.features = {}
        self.body.register_forward_hook(self.keep)

    def keep(self, module, args, output):
        self.features["body"] = output

    def forward(self, x):
        y = self.fc(self.body(x))
        return y + 0.1 * self.features["body"].mean(1, keepdim=True)
