"""Into how many micro-batches a training cuts its batches: kept with a checkpoint, said where it changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from netsplit.errors import NetSplitError
from netsplit.graph.checks.replicated import unreplicable
from netsplit.graph.ir import Graph
from netsplit.graph.operators import over_the_batch
from netsplit.graph.random_draws import node_draws
from netsplit.runtime.checkpoint.files import Saved, State

__all__ = ["Cut", "change_of_cut", "cut_state", "saved_cut"]


@dataclass(frozen=True)
class Cut:
    """Micro-batches of a batch, and the samples of each but perhaps the last."""

    microbatches: int
    size: int

    def __str__(self) -> str:
        return f"{self.microbatches} micro-batch{'es' * (self.microbatches > 1)} of {self.size} samples"


def cut_state(cut: Cut) -> State:
    """The cut as a part of a checkpoint."""
    return {f"cut.{key}": value for key, value in asdict(cut).items()}


def saved_cut(folder: Path) -> Cut | None:
    """A checkpoint's; None of one that was written before it was kept, or that cannot be read."""
    try:
        saved = Saved(folder)
        places = saved.below("cut")
        values = saved.read(dict.fromkeys(places.values()))
        return Cut(**{key: int(values[place]) for key, place in places.items()})
    except (NetSplitError, TypeError, ValueError):
        return None


def change_of_cut(folder: Path, graph: Graph, now: Cut) -> str | None:
    """What goes on otherwise, in words, where a checkpoint's training cut its batches in another way.

    None: the same way, or nothing but rounding depends on it.
    """
    before = saved_cut(folder)
    if before is None or before == now:
        return None
    own = unreplicable(graph, graph.nodes)
    reasons = {
        "batch normalisation takes its statistics of a micro-batch": any(map(over_the_batch, graph)),
        f"the forward writes '{own}' once for every micro-batch": own is not None,
        "random operators draw for every micro-batch anew": any(map(node_draws, graph)),
    }
    changes = [reason for reason, holds in reasons.items() if holds]
    if not changes:
        return None
    return (
        f"it was trained with {before}, and here are {now}: {' and '.join(changes)}, so that training goes "
        f"on otherwise than it would have (schedule.microbatches={before.microbatches} takes as many)"
    )
