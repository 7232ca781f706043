"""All parameters are views of one flat tensor, as flattened optimisers and FSDP-like code make them."""

import torch
from torch import nn


def flatten(model):
    parameters = list(model.parameters())
    flat = torch.cat([p.data.reshape(-1) for p in parameters])
    offset = 0
    for p in parameters:
        p.data = flat[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    return flat


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    model.flat = flatten(model)
    return model


EXPECT = "either"
REASON = "storage|share|shares"
