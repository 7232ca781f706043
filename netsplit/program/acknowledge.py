"""When a device knows that what it sent has arrived, without being told.

    p:  send x ──────────────►  q: computes with x ──► sends y ──►  p: has y, so x had arrived

To be told, a thread must wait for each transfer, which takes more of the computing thread's time than a small
transfer itself. Small tensors are therefore held until something arrives that was made from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.program.check import needs
from netsplit.program.instructions import Backward, Forward, Program, Recv, Send

__all__ = ["HELD_BYTES", "Arrivals", "acknowledged"]

HELD_BYTES = 2**16
"""Tensors up to this size are held so; of larger ones the end of the transfer is watched for."""

_Key = tuple[str, int, bool]  # variable, micro-batch, gradient?


@dataclass(frozen=True)
class Arrivals:
    """Of all transfers of a program, by tag: indices of instructions on the devices of both ends."""

    sent_at: dict[int, int]
    taken_at: dict[int, int]  # that waits for it first; of those that some instruction waits for

    @classmethod
    def of(cls, program: Program) -> Arrivals:
        sent_at = {
            ins.tag: index
            for each in program.instructions.values()
            for index, ins in enumerate(each)
            if isinstance(ins, Send)
        }
        taken_at = {tag: index for name in program.devices for tag, index in _taken(program, name).items()}
        return cls(sent_at, taken_at)


def acknowledged(
    program: Program, device: str, arrivals: Arrivals | None = None
) -> dict[int, tuple[Send, ...]]:
    """Index of a device's instruction -> small sends of its own that are over once this instruction is.

    Those that nothing later tells of are not in it: they are waited for at the iteration's end.

    Args:
        arrivals: those of the program, where more than one device asks.
    """
    known = Arrivals.of(program) if arrivals is None else arrivals
    sent_at, taken_at = known.sent_at, known.taken_at
    taken: dict[int, list[Recv]] = {}
    for ins in program.instructions[device]:
        if isinstance(ins, Recv) and ins.tag in taken_at:
            taken.setdefault(taken_at[ins.tag], []).append(ins)
    freed: dict[int, tuple[Send, ...]] = {}
    under_way: dict[str, list[Send]] = {}
    for index, ins in enumerate(program.instructions[device]):
        if isinstance(ins, Send) and program.graph.variables[ins.source].nbytes <= HELD_BYTES:
            under_way.setdefault(ins.peer, []).append(ins)
        over: list[Send] = []
        for recv in taken.get(index, ()):
            sends = under_way.get(recv.peer, [])
            told = {
                send.tag for send in sends if taken_at.get(send.tag, sent_at[recv.tag]) < sent_at[recv.tag]
            }
            under_way[recv.peer] = [send for send in sends if send.tag not in told]
            over += [send for send in sends if send.tag in told]
        if over:
            freed[index] = tuple(over)
    return freed


def _taken(program: Program, device: str) -> dict[int, int]:
    """Tag of a Recv -> index of the instruction on its device that waits for it first."""
    arriving: dict[_Key, int] = {}
    takers: dict[int, int] = {}
    for index, ins in enumerate(program.instructions[device]):
        if isinstance(ins, Recv):
            arriving[ins.variable, ins.microbatch, ins.gradient] = ins.tag
        elif isinstance(ins, Forward | Backward):
            for key in needs(program, ins):
                if (tag := arriving.pop(key, None)) is not None:
                    takers[tag] = index
    return takers
