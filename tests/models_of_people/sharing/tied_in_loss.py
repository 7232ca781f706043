"""The loss module holds the model's own weight too (sampled softmax over the embedding)."""

from torch import nn
from torch.nn import functional as F


class OutputLoss(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, hidden, targets):
        return F.cross_entropy(hidden @ self.weight.T, targets)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.classes = nn.Parameter(0.1 * __import__("torch").randn(5, 8))

    def forward(self, x):
        return self.fc(x).relu() + self.classes.mean(0)


def build():
    model = Model()
    return model, OutputLoss(model.classes)
