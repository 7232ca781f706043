"""A buffer that looks into a parameter's storage, so that it follows the training."""

from torch import nn


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.register_buffer("first_row", self.fc.weight.data[0])

    def forward(self, x):
        return self.fc(x) + (x * self.first_row).sum(1, keepdim=True)


EXPECT = "either"
REASON = "storage|share"
