"""The forward does something else in training: `if self.training`."""

from torch import nn
from torch.nn import functional as F


class LabelSmoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        h = F.gelu(self.body(x))
        if self.training:
            h = h * 1.25
        logits = self.head(h)
        return logits if self.training else logits.softmax(-1)
