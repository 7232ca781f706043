"""What a whole plan's choices change of what is trained, and what its seconds rest on, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from netsplit.graph.checks.replicated import replicated_statistics, statistics_notes
from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement

__all__ = ["notes_of"]


def notes_of(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """Of statistics of batches, over which samples they are and whose the running ones; of other buffers; of
    workers whose effect on one another could not be told."""
    graph = problem.graph
    notes = [*statistics_notes(graph)] if problem.the_simulator.schedule.microbatches > 1 else []
    if replicated_statistics(graph, placement.replicated):
        notes.append(
            "BatchNorm's running statistics come from the first replica's micro-batches, as in "
            "DistributedDataParallel (schedule.replicas=false uses no replicas)."
        )
    return (*notes, *_guessed(problem, placement))


def _guessed(problem: Problem, placement: Placement) -> Iterator[str]:
    """Of the kinds of which several devices of one host compute."""
    used = {name for stage in placement.all_stages for name in stage.devices}
    devices = [
        device for device in problem.cluster.devices if device.name in used and device.host is not None
    ]
    together = Counter((device.kind, device.host) for device in devices)
    for kind in dict.fromkeys(kind for (kind, _), count in together.items() if count > 1):
        costs = problem.costs.of(kind)
        if costs.unsure:
            yield (
                f"The slow-down between {kind} workers is uncertain and assumed as "
                f"{100 * (costs.contention - 1):.0f} %: training may take longer than predicted (measure "
                "again on a quiet machine)."
            )
