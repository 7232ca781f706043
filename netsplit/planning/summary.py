"""A decision on one page: a few lines and a table of the devices, as text and as a notebook shows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape

from netsplit.placement.placement import Placement
from netsplit.program.instructions import Forward, Program
from netsplit.simulate.simulator import Simulator
from netsplit.simulate.timeline import Timeline
from netsplit.tables import Table, nbytes

__all__ = ["PlanSummary", "recomputation_line"]


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
