"""What a whole plan's choices change of what is trained, in sentences."""

from __future__ import annotations

from netsplit.graph.operators import written_initializers
from netsplit.partition.base import Placement, Problem
from netsplit.planning.simulated import simulated_by

__all__ = ["notes_of"]


def notes_of(problem: Problem, placement: Placement) -> tuple[str, ...]:
    """Of batch statistics: over which samples they are taken, and whose the running ones are."""
    graph = problem.graph
    statistics = {
        writer: name
        for name, writers in written_initializers(graph).items()
        for writer in writers
        if "batch_norm" in graph.nodes[writer].op
    }
    if not statistics:
        return ()
    notes = []
    microbatches = simulated_by(problem).schedule.microbatches
    if microbatches > 1:
        notes.append(
            f"batch normalisation is over micro-batches of {graph.batch_size} samples, as in PyTorch that "
            "adds up gradients of so many smaller batches (schedule.microbatches=1 keeps the batch whole)"
        )
    replicated = {v for each in placement.stages if len(each.devices) > 1 for v in each.nodes}
    if replicated & statistics.keys():
        notes.append(
            "running statistics are those of the first replica's micro-batches, as DistributedDataParallel "
            "has it (schedule.replicas=false uses none)"
        )
    return tuple(notes)
