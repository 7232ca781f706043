"""BYOL: online and target nets, the target's branch without gradient."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import pairs


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False
        self.predictor = nn.Linear(4, 4)

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            ta, tb = self.target(a).detach(), self.target(b).detach()
        first = 2 - 2 * F.cosine_similarity(pa, tb, dim=-1)
        return (first + 2 - 2 * F.cosine_similarity(pb, ta, dim=-1)).mean()


loss = None
batch = pairs()
