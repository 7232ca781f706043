"""torch.default_generator as generator=, its state taken and given back: the same draw twice."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        generator = torch.default_generator
        state = generator.get_state()
        first = torch.rand(8, generator=generator)
        generator.set_state(state)
        second = torch.rand(8, generator=generator)
        return self.b(self.a(x) + 10 * (first - second))


EXPECT = "refused"
REASON = "sets torch.s generator"
