"""torch.nn.utils.weight_norm, the older one, which works by a pre-hook."""

import warnings

from torch import nn
from torch.nn.utils import weight_norm

from tests.models_of_people.data import sequences


def build():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(
            weight_norm(nn.Conv1d(5, 6, 3, padding=1)), nn.ReLU(), nn.Flatten(), weight_norm(nn.Linear(36, 5))
        )


batch = sequences()
