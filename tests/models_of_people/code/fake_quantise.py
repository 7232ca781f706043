"""Quantisation-aware training by torch.fake_quantize_per_tensor_affine, in float32."""

import torch
from torch import nn


class QAT(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def quantised(self, w):
        scale = w.detach().abs().amax() / 127
        return torch.fake_quantize_per_tensor_affine(
            w, scale.float(), torch.zeros((), dtype=torch.int32), -128, 127
        )

    def forward(self, x):
        h = nn.functional.linear(x, self.quantised(self.a.weight), self.a.bias).relu()
        return nn.functional.linear(h, self.quantised(self.b.weight), self.b.bias)
