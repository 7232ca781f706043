"""A forward that warns, logs shapes and formats strings."""

import logging
import warnings

from torch import nn

log = logging.getLogger(__name__)


class Talkative(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        log.debug("input %s", tuple(x.shape))
        if x.shape[0] < 1000:
            warnings.warn(f"a small batch: {x.shape[0]}", stacklevel=2)
        y = self.fc(x)
        assert y.shape == (x.shape[0], 5), f"{y.shape} is not ({x.shape[0]}, 5)"
        return y
