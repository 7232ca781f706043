"""A mixture of experts: each expert takes the tokens routed to it, by nonzero and index_add."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class MoE(nn.Module):
    def __init__(self, dim=6, experts=4, top=2):
        super().__init__()
        self.top = top
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, 8), nn.SiLU(), nn.Linear(8, dim))
                                     for _ in range(experts))  # fmt: skip

    def forward(self, x):
        b, t, d = x.shape
        x = x.view(-1, d)
        weights, chosen = torch.topk(self.gate(x).softmax(-1), self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, nth = torch.where(chosen == i)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, nth, None])
        return out.view(b, t, d)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.moe, self.fc = MoE(), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc((x + self.moe(x)).mean(1))


batch = sequences()
EXPECT = "either"
REASON = "data-dependent|value|where|nonzero"
