"""What a plan recomputes, and what that is for, in a sentence."""

from __future__ import annotations

from dataclasses import replace

from netsplit.partition.base import Placement
from netsplit.planning.simulated import Simulated
from netsplit.program.instructions import Forward, Program
from netsplit.simulate.timeline import Timeline
from netsplit.tables import nbytes

__all__ = ["recomputation_line"]


def recomputation_line(
    compiler: Simulated, placement: Placement, program: Program, predicted: Timeline
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
