"""A dict of losses, summed: the usual loop of detection code."""

from torch import nn
from torch.nn import functional as F


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.cls, self.box, self.iou = nn.Linear(8, 5), nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x).relu()
        return {"cls": self.cls(h), "box": self.box(h), "iou": self.iou(h)}


def loss(outputs, targets):
    losses = {
        "cls": F.cross_entropy(outputs["cls"], targets),
        "box": F.smooth_l1_loss(outputs["box"], outputs["box"].detach().roll(1, 0)),
        "iou": F.binary_cross_entropy_with_logits(outputs["iou"][:, 0], (targets > 2).to(outputs["iou"])),
    }
    return sum(value for value in losses.values())
