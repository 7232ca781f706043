"""Global generators while a user's own samples are read: the same numbers for the same sample, wherever."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["Generators", "generators", "global_generators_kept", "seed_of_sample", "set_generators"]

Generators = tuple[Any, ...]


def seed_of_sample(*key: int) -> None:
    """Have the global generators of Python, NumPy and torch (on the CPU) depend on these numbers alone."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=12).digest()
    random.seed(digest)
    np.random.seed(int.from_bytes(digest[:4], "little"))
    torch.default_generator.manual_seed(int.from_bytes(digest[4:], "little") >> 1)


def generators() -> Generators:
    """Where the three stand."""
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def set_generators(states: Generators) -> None:
    """Back to where they stood."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.default_generator.set_state(states[2])


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """They stand afterwards where they stood before."""
    before = generators()
    try:
        yield
    finally:
        set_generators(before)
