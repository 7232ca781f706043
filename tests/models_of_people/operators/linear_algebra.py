"""Cholesky, solve, inverse, determinant and singular values: a Gaussian layer."""

import torch
from torch import nn


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.root, self.fc = nn.Parameter(torch.eye(6) + 0.1 * torch.randn(6, 6)), nn.Linear(6, 5)

    def forward(self, x):
        cov = self.root @ self.root.T + 0.5 * torch.eye(6)
        chol = torch.linalg.cholesky(cov)
        white = torch.linalg.solve_triangular(chol, x.T, upper=False).T
        energy = (x * torch.linalg.solve(cov, x.T).T).sum(1, keepdim=True)
        spread = torch.logdet(cov) + torch.linalg.svdvals(self.root).sum() + torch.trace(torch.inverse(cov))
        return self.fc(white) + 0.01 * (energy + spread)
