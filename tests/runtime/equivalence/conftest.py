"""Worker pools for the whole session: starting one takes seconds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from netsplit.cluster.local import LocalDevice, local_cluster
from netsplit.runtime.workers.pool import WorkerPool

Pools = Callable[[int], WorkerPool]


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Number of workers -> their pool, started when first asked for; a failed one is replaced."""
    with ExitStack() as stack:
        found: dict[int, WorkerPool] = {}

        def pool(workers: int) -> WorkerPool:
            if workers not in found or found[workers].failed:
                devices = [LocalDevice(f"cpu:{rank}") for rank in range(workers)]
                spec = local_cluster(f"cpu{workers}", devices, timeout_s=30)
                found[workers] = stack.enter_context(WorkerPool(spec, Path(tempfile.mkdtemp())))
            return found[workers]

        yield pool
