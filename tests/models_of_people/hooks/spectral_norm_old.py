"""torch.nn.utils.spectral_norm: a power iteration writes its buffers in every forward."""

from torch import nn
from torch.nn.utils import spectral_norm

from tests.models_of_people.data import images


def build():
    return nn.Sequential(
        spectral_norm(nn.Conv2d(3, 4, 3)), nn.LeakyReLU(0.2), nn.Flatten(), spectral_norm(nn.Linear(144, 5))
    )


batch = images()
