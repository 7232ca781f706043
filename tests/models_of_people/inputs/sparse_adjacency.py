"""A sparse matrix as a buffer: graph convolution with torch.sparse.mm."""

import torch
from torch import nn


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        at = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
        self.register_buffer("adjacency", torch.sparse_coo_tensor(at, torch.ones(6), (6, 6)).coalesce())
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(torch.sparse.mm(self.adjacency, x.T).T)


EXPECT = "either"
REASON = "sparse"
