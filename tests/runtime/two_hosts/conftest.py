"""Two hosts on this machine, where it has the means."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from benchmarks.two_hosts.agents import PORT, Agents
from benchmarks.two_hosts.hosts import TwoHosts, missing
from netsplit.cluster.local import LocalDevice, local_cluster
from netsplit.runtime.workers.launch import KEY_VARIABLE, external_command
from netsplit.runtime.workers.pool import WorkerPool

RATE_MBIT = 100.0
TIMEOUT_S = 30.0
NAMES = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


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


@contextmanager
def workers_on(hosts: TwoHosts, per_host: tuple[int, ...], folder: Path) -> Iterator[WorkerPool]:
    """The devices of `NAMES`, so many on each host, as their controller on the first has them.

    At the end nothing of them is left.
    """
    spec = local_cluster(
        "joined",
        [LocalDevice(name) for name in NAMES],
        timeout_s=TIMEOUT_S,
        port=PORT,
        host=hosts.a.address,
        external=True,
    )
    agents = Agents(hosts, per_host, folder)
    with hosts.a.entered(), pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as beside:
        patch.setenv(KEY_VARIABLE, agents.key)
        opening = beside.submit(WorkerPool, spec, folder / "controller")
        agents.start(external_command(spec, spec.host, spec.port + 1))
        with opening.result(120) as opened:
            yield opened
    assert agents.ended() == [0 for _ in per_host]
    assert not [left for host in hosts.all for left in host.processes()]
