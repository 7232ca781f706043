"""Two hosts on this machine, where it has the means."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from benchmarks.two_hosts.hosts import TwoHosts, missing

RATE_MBIT = 100.0


@cache
def lacking() -> str:
    return missing()


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    """Joined at 100 Mbit/s."""
    if lacking():
        pytest.skip(f"no two hosts here: {lacking()}")
    with TwoHosts(RATE_MBIT) as joined:
        yield joined
