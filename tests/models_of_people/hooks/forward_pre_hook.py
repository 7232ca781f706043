"""A pre-hook that normalises the input, and one with keywords."""

from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x, scale=1.0):
        return self.fc(x) * scale


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Scaled()
        self.inner.register_forward_pre_hook(lambda m, args: (args[0] / args[0].norm(dim=1, keepdim=True),))
        self.inner.register_forward_pre_hook(
            lambda m, args, kwargs: (args, {**kwargs, "scale": 2.0}), with_kwargs=True
        )

    def forward(self, x):
        return self.inner(x, scale=1.0)
