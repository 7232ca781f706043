"""A decision on one page: a few lines and a table of the devices, as text and as a notebook shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape

from netsplit.graph.operators import unchanging
from netsplit.placement.placement import Placement
from netsplit.program.instructions import Forward, Program
from netsplit.rewrite.records import reads_copies
from netsplit.simulate.simulator import Simulator
from netsplit.simulate.timeline import GRADIENT_OF, Timeline
from netsplit.tables import Table, nbytes

__all__ = ["PlanSummary", "recomputation_line", "weight_lines"]


@dataclass(frozen=True)
class PlanSummary:
    """`str` has it as plain text."""

    lines: tuple[str, ...]
    devices: Table

    def __str__(self) -> str:
        return "\n".join([*self.lines, *self.devices.lines()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(escape, self.lines))
        return f"<p>{lines}</p>{self.devices.html()}"


_MOST = 3


def weight_lines(program: Program, predicted: Timeline) -> Iterator[str]:
    """A line for weights that are sent to where they are read, and one for the sums of copies' gradients."""
    weights = unchanging(program.graph)
    there, back, summed = Counter[str](), Counter[str](), Counter[str]()
    for event in predicted.events:
        name = event.name.removeprefix(GRADIENT_OF)
        if event.kind == "send" and name in weights:
            sent = there if name == event.name else back
            sent[f"from {event.device} to {event.peer}"] += event.nbytes
        elif event.kind == "reduce" and event.nbytes:  # that of a norm moves none
            devices = event.name.rpartition(" over ")[2]
            if event.device == devices.partition(", ")[0]:  # each of them has the event
                summed[f"over {devices}"] += event.nbytes
    if there:
        gradients = f"; gradients of them: {_most(back)}" if back else ""
        yield f"weights sent in an iteration to where they are read: {_most(there)}{gradients}"
    if summed and reads_copies(program.graph.rewrites):
        yield f"copies of weights, whose gradients are summed in an iteration: {_most(summed)}"


def _most(sent: Counter[str]) -> str:
    """``1.5 MiB from cpu:0 to cpu:1, 12 KiB from cpu:1 to cpu:0``; of many those with most bytes."""
    words = [f"{nbytes(count)} {way}" for way, count in sent.most_common(_MOST)]
    rest = sum(sent.values()) - sum(count for _, count in sent.most_common(_MOST))
    return ", ".join([*words, *([f"{nbytes(rest)} otherwise"] if rest else [])])


def recomputation_line(
    compiler: Simulator, placement: Placement, program: Program, predicted: Timeline
) -> str:
    """ "recomputes 5 of 12 parts on cpu:1 (310 MiB less), for 4.0 % more time"; "" where nothing is.

    Beside the same placement with everything kept. A device of replicas is named by the first of them.
    """
    if not placement.recomputed:
        return ""
    kept = compiler(replace(placement, recomputed=frozenset()))
    devices = []
    for name in dict.fromkeys(segment.device for segment in program.segments):
        own = [segment for segment in program.segments if segment.device == name]
        again = {
            ins.segment for ins in program.instructions[name] if isinstance(ins, Forward) and ins.recompute
        }
        if again:
            less = kept.peak_bytes[name] - predicted.peak_bytes[name]
            devices.append(f"{len(again)} of {len(own)} parts on {name} ({nbytes(less)} less)")
    more = predicted.iteration_s / kept.iteration_s - 1 if kept.iteration_s else 0.0
    return f"recomputes {', '.join(devices) or 'nothing'}, for {100 * more:.1f} % more time"
