"""What one size of micro-batches takes beside another, measured in turn on a worker of each device kind."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.experiment.calibration import identity_of
from netsplit.profile.measure.stretches.in_turn import SizedStep, seconds_in_turn
from netsplit.profile.measured import ProfileCache, profile_digest
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["SizeSeconds", "measured_in_turn"]

log = logging.getLogger(__name__)

SizeSeconds = dict[str, dict[int, float]]
"""Device kind -> samples of a micro-batch -> seconds of its forward and backward."""


def measured_in_turn(
    steps: Sequence[SizedStep],
    values: dict[str, Tensor],
    pool: WorkerPool,
    cluster: Cluster,
    cache: ProfileCache,
) -> SizeSeconds:
    """Of every kind: kept ones where nothing has changed, else measured now."""
    seconds: SizeSeconds = {}
    sent = [replace(step, graph=replace(step.graph, output_spec=None)) for step in steps]
    sizes = [(step.graph.batch_size, step.in_flight) for step in sent]
    for rank, device in enumerate(cluster.devices):
        if device.kind in seconds:
            continue
        digest = profile_digest(sent[0].graph, identity_of(pool, rank), sizes=sizes)
        kept = cache.sizes(digest)
        if not kept:
            log.info("measuring %d sizes of micro-batches in turn on %s", len(sizes), device.name)
            kept = pool.call_one(rank, _measure, sent, values)
            cache.add_sizes(digest, kept)
        seconds[device.kind] = kept
    return seconds


def _measure(worker: Worker, steps: list[SizedStep], values: dict[str, Tensor]) -> dict[int, float]:
    return seconds_in_turn(steps, values, worker.torch_device)
