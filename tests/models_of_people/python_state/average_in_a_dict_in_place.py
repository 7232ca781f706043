"""A running mean in a dictionary, written in place."""

import torch

from tests.models_of_people.bases import Scaled


class M(Scaled):
    def init(self):
        self.st = {"m": torch.zeros(8)}

    def forward(self, x):
        h = self.a(x).relu()
        self.st["m"].mul_(0.9).add_(0.1 * h.detach().mean(0))
        return self.b(h - self.st["m"])


EXPECT = "either"
REASON = "state"
