"""A state space model by a scan in Python, cumsum and cumprod beside."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.models_of_people.data import sequences


class Scan(nn.Module):
    def __init__(self, d=6, n=3):
        super().__init__()
        self.log_a = nn.Parameter(
            torch.log(torch.arange(1, n + 1).repeat(d, 1).to(torch.get_default_dtype()))
        )
        self.bc, self.dt, self.fc = nn.Linear(d, 2 * n), nn.Linear(d, d), nn.Linear(d, 5)
        self.skip = nn.Parameter(torch.ones(d))

    def forward(self, x):
        dt = F.softplus(self.dt(x))
        b, c = self.bc(x).chunk(2, -1)
        decay = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.log_a))
        state, out = x.new_zeros(x.shape[0], x.shape[2], b.shape[-1]), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + (dt * x)[:, t, :, None] * b[:, t, None]
            out.append(torch.einsum("bdn,bn->bd", state, c[:, t]))
        y = torch.stack(out, 1) + x * self.skip
        return self.fc(y.mean(1) + dt.cumsum(1)[:, -1] + torch.sigmoid(x).cumprod(1)[:, -1])


batch = sequences()
