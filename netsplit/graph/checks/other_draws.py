"""Random numbers that are not torch's: a captured step would draw them once and for all."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from netsplit.errors import CaptureError

__all__ = ["no_other_draws"]


@contextmanager
def no_other_draws(name: str) -> Iterator[None]:
    """Python's and NumPy's random numbers are drawn at capture once and for all."""
    python: Any = random.getstate()
    numpy: Any = np.random.get_state()
    with mock.patch.object(random, "_urandom", wraps=os.urandom) as system:  # of SystemRandom
        yield
    drawn = [] if random.getstate() == python and not system.called else ["Python's random"]
    now: Any = np.random.get_state()
    if now[2] != numpy[2] or not np.array_equal(now[1], numpy[1]):
        drawn.append("numpy.random")
    if drawn:
        raise CaptureError(
            f"{name} draws from {drawn[0]}, which a captured step would do once and for all: draw with torch "
            f"(torch.rand, torch.bernoulli), which stays in the step."
        )
