"""What micro-batches of every size take, measured in turn on a worker of each kind, alone and in company."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.profile.costs import TurnSeconds
from netsplit.profile.measure.stretches.in_turn import InTurn, SizedStep, in_rounds
from netsplit.profile.measured import ProfileCache, profile_digest
from netsplit.profile.sized import SizeSeconds
from netsplit.runtime.workers.machines import identity_of, mates_of
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["measured_in_turn"]

log = logging.getLogger(__name__)

TURNS = "sizes in turn"  # key of a worker's memory


def measured_in_turn(
    steps: Sequence[SizedStep],
    values: dict[str, Tensor],
    pool: WorkerPool,
    cluster: Cluster,
    cache: ProfileCache,
) -> SizeSeconds:
    """Seconds on every device kind: kept ones where nothing has changed, else measured now.

    In company are as many workers of a kind on one host as there are processors for them.
    """
    seconds: SizeSeconds = {}
    sent = [replace(step, graph=replace(step.graph, output_spec=None)) for step in steps]
    sizes = [(step.graph.batch_size, step.in_flight) for step in sent]
    ranks = range(len(cluster.devices))
    company = {rank: _company(cluster, rank) for rank in ranks}
    for rank in sorted(ranks, key=lambda rank: -len(company[rank])):
        device = cluster.devices[rank]
        if device.kind in seconds:
            continue
        together = company[rank]
        digest = profile_digest(
            sent[0].graph,
            identity_of(pool, rank),
            sizes=sizes,
            mates=len(together),
            processors=device.processors,
        )
        kept = cache.sizes(digest)
        if not kept.seconds:
            log.info("Measuring %d micro-batch sizes on %s.", len(sizes), device.name)
            kept = _measured(sent, values, pool, together)
            if len(together) < 2 or kept.contention:  # else it was uncertain: measured anew by the next
                cache.add_sizes(digest, kept)
        seconds[device.kind] = kept
    return seconds


def _company(cluster: Cluster, rank: int) -> list[int]:
    """The worker and those that may compute at once with it, each on a processor of its own."""
    mates = mates_of(cluster.devices, rank)
    others = [mate for mate in mates if mate != rank]
    processors = cluster.devices[rank].processors
    most = len(mates) if processors is None else max(int(processors), 1)
    return [rank, *others][:most]


def _measured(
    steps: list[SizedStep], values: dict[str, Tensor], pool: WorkerPool, together: Sequence[int]
) -> TurnSeconds:
    ranks = range(len(pool.connections))
    nothing: tuple[list[SizedStep], dict[str, Tensor]] = ([], {})
    pool.call_each(_begin_turns, [(steps, values) if rank in together else nothing for rank in ranks])
    first = together[0]

    def company() -> list[dict[int, float]]:
        took = pool.call(_take_turn)
        return [took[rank] for rank in together]

    try:
        return in_rounds(lambda: pool.call_one(first, _take_turn), company if len(together) > 1 else None)
    finally:
        pool.call(_end_turns)


def _begin_turns(worker: Worker, steps: list[SizedStep], values: dict[str, Tensor]) -> None:
    worker.memory[TURNS] = InTurn(steps, values, worker.torch_device)


def _take_turn(worker: Worker) -> dict[int, float]:
    turns: InTurn = worker.memory[TURNS]
    return turns.round()


def _end_turns(worker: Worker) -> None:
    worker.memory.pop(TURNS, None)
