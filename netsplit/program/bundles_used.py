"""When a device lets go of parameters that were put together for a computation."""

from __future__ import annotations

from netsplit.program.instructions import Backward, Forward, Gather, Program

__all__ = ["bundles_used"]


def bundles_used(
    program: Program, device: str
) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
    """Segment -> bundles that must be whole for it; instruction -> bundles that go after it.

    A bundle goes after a computation unless the next one that needs it comes before it is gathered again.
    """
    reading: dict[int, tuple[int, ...]] = {}
    for b, bundle in enumerate(program.bundles):
        if bundle.level == "parameters" and device in bundle.devices:
            for s in bundle.segments:
                reading[s] = (*reading.get(s, ()), b)
    going: dict[int, tuple[int, ...]] = {}
    needed: set[int] = set()  # before they are gathered again
    instructions = program.instructions[device] if reading else ()
    for index in reversed(range(len(instructions))):
        ins = instructions[index]
        if isinstance(ins, Gather):
            needed.discard(ins.bundle)
        elif isinstance(ins, Forward) or (isinstance(ins, Backward) and ins.part != "weight"):
            used = reading.get(ins.segment, ())
            going[index] = tuple(b for b in used if b not in needed)
            needed.update(used)
    return reading, {index: each for index, each in going.items() if each}
