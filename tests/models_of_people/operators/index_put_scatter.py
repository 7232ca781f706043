"""index_put_ with accumulation, scatter_add_, index_add, scatter_reduce: graph message passing."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]]))
        self.a, self.b, self.fc = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        source, target = self.edges
        m = self.a(x[:, source])
        summed = torch.zeros_like(x).index_add_(1, target, m)
        most = torch.zeros_like(x).scatter_reduce(
            1, target[None, :, None].expand_as(m), self.b(m), "amax", include_self=False
        )
        counts = torch.zeros(5).scatter_add_(0, target, torch.ones(6))
        y = torch.zeros_like(x)
        y.index_put_((torch.arange(x.shape[0])[:, None], target[None]), m, accumulate=True)
        return self.fc((summed / counts[:, None] + most + y).mean(1))


batch = sequences()
