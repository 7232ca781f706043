"""A Fourier neural operator layer: rfft, complex weights by view_as_complex, irfft."""

import torch
from torch import nn

from tests.models_of_people.data import sequences


class Spectral(nn.Module):
    def __init__(self, modes=3):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(0.1 * torch.randn(6, 6, modes, 2))
        self.skip, self.fc = nn.Conv1d(6, 6, 1), nn.Linear(6, 5)

    def forward(self, x):
        x = x.transpose(1, 2)
        ft = torch.fft.rfft(x)
        out = torch.zeros(x.shape[0], 6, ft.shape[-1], dtype=ft.dtype)
        weight = torch.view_as_complex(self.weight)
        out[:, :, : self.modes] = torch.einsum("bix,iox->box", ft[:, :, : self.modes], weight)
        return self.fc((torch.fft.irfft(out, n=x.shape[-1]) + self.skip(x)).relu().mean(-1))


batch = sequences()
