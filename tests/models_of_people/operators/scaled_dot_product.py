"""F.scaled_dot_product_attention: causal, with a mask, grouped heads."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import sequences


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.fc = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 4).transpose(1, 2)
        k, v = (t.view(b, n, 2, 4).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        bias = torch.zeros(n, n).masked_fill(torch.eye(n, dtype=torch.bool), -1.0)
        y = y + F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.3)
        return self.fc(y.transpose(1, 2).flatten(2).mean(1))


batch = sequences()
