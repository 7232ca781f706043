"""SimSiam: stop-gradient by detach alone."""

from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import pairs


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.predictor = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4))

    def forward(self, x1, x2):
        z1, z2 = self.encoder(x1), self.encoder(x2)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


def loss(outputs):
    p1, p2, z1, z2 = outputs
    return -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) * 0.5


batch = pairs()
