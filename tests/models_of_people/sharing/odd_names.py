"""Submodules named after keywords and methods; names that meet operators' and inputs'."""

from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("add", "class", "lambda", "linear", "relu", "x", "args_0", "inputs", "targets", "view"):
            self.add_module(name, nn.Linear(6, 6))
        self.output = nn.Linear(6, 5)

    def forward(self, x):
        for name, module in self.named_children():
            if name != "output":
                x = x + module(x).relu()
        return self.output(x)
