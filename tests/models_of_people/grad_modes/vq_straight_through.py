"""VQ-VAE with a trained codebook and the straight-through trick by detach."""

from torch import nn
from torch.nn import functional as F


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(4, 5)
        self.codebook = nn.Embedding(8, 4)

    def forward(self, x):
        z = self.encoder(x)
        indices = __import__("torch").cdist(z, self.codebook.weight).argmin(-1)
        e = self.codebook(indices)
        extra = F.mse_loss(e, z.detach()) + 0.25 * F.mse_loss(z, e.detach())
        return self.decoder(z + (e - z).detach()), extra


def loss(outputs, targets):
    return F.cross_entropy(outputs[0], targets) + outputs[1]
