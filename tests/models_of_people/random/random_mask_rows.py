"""MAE's random masking: an argsort of noise, and gathers."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class MAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(8, 6)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, 8))

    def forward(self, x):
        b, n, _ = x.shape
        order = torch.rand(b, n, device=x.device).argsort(dim=1)
        back = order.argsort(dim=1)
        kept = x.gather(1, order[:, :2, None].expand(-1, -1, 6))
        h = torch.cat([self.encoder(kept).relu(), self.mask_token.expand(b, n - 2, -1)], 1)
        return (self.decoder(h.gather(1, back[..., None].expand(-1, -1, 8))) - x).square().mean()


def loss(value, targets):
    return value


batch = sequences()
RANDOM = True
