"""Proof of progress: a program is run without data before anything is spawned (invariant 2).

Sends go on at once there. NCCL's end only when the receive is met, and on a busy GPU one transfer may hold up
whatever its device asks for later. The devices get through all the same where every one of them goes through
its transfers and sums in one order common to all, as then the first that is not over has both ends waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from netsplit.errors import DeadlockError
from netsplit.program.instructions import (
    Backward,
    Collective,
    Forward,
    Gather,
    Instruction,
    Program,
    Recv,
    Send,
)

__all__ = ["check_progress", "needs"]


def needs(program: Program, instruction: Instruction) -> list[tuple[str, int, bool]]:
    """(variable, micro-batch, gradient?) of the transfers an instruction waits for.

    A Forward waits for the copies it reads; a Backward, whole or its input part, for the gradients of its
    outputs from other devices; of a Send see `Program.handed_on`. Whether such a transfer exists in the
    program is for the caller to see.
    """
    i = instruction.microbatch if isinstance(instruction, Forward | Backward) else 0
    if isinstance(instruction, Forward):
        segment = program.segments[instruction.segment]
        device = segment.on(i)
        copies = [k for k in segment.inputs if _is_copy(program, k)]
        return [(k, program.sent_with(k, device, i), False) for k in copies]
    if isinstance(instruction, Backward) and instruction.part != "weight":
        segment = program.segments[instruction.segment]
        copies = [
            v for k in segment.outputs for v in program.graph.variables[k].consumers if _is_copy(program, v)
        ]
        return [(copy, i, True) for copy in copies if program.gives_back(copy, i)]
    return []


def check_progress(program: Program) -> None:
    """Run the program without data.

    Raises:
        DeadlockError: some device can never go on, or could not if sends waited for their receives; names
            the circle, or the transfer without a partner.
    """
    planned = {
        (ins.variable, ins.microbatch, ins.gradient)
        for each in program.instructions.values()
        for ins in each
        if isinstance(ins, Send | Recv)
    }
    sent: set[int] = set()
    summing: dict[int, set[str]] = {}  # tag of a sum or gathering -> devices that have not come to it
    begun: dict[str, list[Collective]] = {name: [] for name in program.devices}  # sums to wait for
    received: dict[str, dict[tuple[str, int, bool], int]] = {name: {} for name in program.devices}
    at = dict.fromkeys(program.devices, 0)
    asleep: dict[tuple[bool, int], list[str]] = {}  # (a sum?, tag) -> who waits for it
    awake = list(program.devices)
    while awake:
        name = awake.pop()
        while at[name] < len(program.instructions[name]):
            instruction = program.instructions[name][at[name]]
            tags = [received[name].get(key) for key in _wanted(program, name, instruction, planned)]
            missing = [(False, tag) for tag in tags if tag not in sent]
            if begun[name] and not isinstance(instruction, Send | Recv):
                begun[name] = [each for each in begun[name] if summing[each.tag]]
                computes = isinstance(instruction, Forward | Backward)
                waited = [each for each in begun[name] if not computes or isinstance(each, Gather)]
                missing += [(True, each.tag) for each in waited]
            if missing:
                if None not in tags:  # else its own Recv comes later, to which it never comes
                    asleep.setdefault(missing[0], []).append(name)  # type: ignore[arg-type]
                break
            if isinstance(instruction, Send):
                sent.add(instruction.tag)
                awake += asleep.pop((False, instruction.tag), ())
            elif isinstance(instruction, Recv):
                received[name][instruction.variable, instruction.microbatch, instruction.gradient] = (
                    instruction.tag
                )
            elif isinstance(instruction, Collective):
                summing.setdefault(instruction.tag, set(instruction.devices)).discard(name)
                begun[name].append(instruction)
                if not summing[instruction.tag]:
                    awake += asleep.pop((True, instruction.tag), ())
            at[name] += 1
    _check_partners(program, sent)
    stuck = [name for name in program.devices if at[name] < len(program.instructions[name])]
    if stuck:
        absent = {name: sorted({d for sum_ in begun[name] for d in summing[sum_.tag]}) for name in stuck}
        raise DeadlockError(_circle(program, at, received, sent, planned, absent, stuck[0]))
    _check_order(program)


def _wanted(
    program: Program, device: str, instruction: Instruction, planned: set[tuple[str, int, bool]]
) -> list[tuple[str, int, bool]]:
    """Every value an instruction reads, and those gradients that the program transfers at all."""
    if isinstance(instruction, Send):
        return list(program.handed_on(instruction, device))
    return [key for key in needs(program, instruction) if not key[2] or key in planned]


def _check_partners(program: Program, sent: Iterable[int]) -> None:
    tags: dict[type, dict[int, Send | Recv]] = {Send: {}, Recv: {}}
    for each in program.instructions.values():
        for ins in each:
            if isinstance(ins, Send | Recv):
                tags[type(ins)][ins.tag] = ins
    for kind, other in ((Send, Recv), (Recv, Send)):
        for tag, ins in tags[kind].items():
            if tag not in tags[other]:
                raise DeadlockError(f"the program has a {ins} without its {other.__name__.lower()}.")


def _check_order(program: Program) -> None:
    """That one order of all transfers and sums is the order of every device."""
    lists = [
        [ins for ins in each if isinstance(ins, Send | Recv | Collective)]
        for each in program.instructions.values()
    ]
    steps = [(a, b) for each in lists for a, b in pairwise(each)]
    if all(a.tag < b.tag for a, b in steps):
        return
    before: TopologicalSorter[int] = TopologicalSorter()
    for a, b in steps:
        before.add(b.tag, a.tag)
    try:
        before.prepare()
    except CycleError as error:
        ins_of = {ins.tag: ins for each in lists for ins in each}
        circle = ", then the ".join(str(ins_of[tag]) for tag in error.args[1])
        raise DeadlockError(
            "the program cannot complete where a send waits for its receive, as by NCCL: its devices come to "
            f"the {circle}."
        ) from error


def _circle(
    program: Program,
    at: dict[str, int],
    received: dict[str, dict[tuple[str, int, bool], int]],
    sent: set[int],
    planned: set[tuple[str, int, bool]],
    absent: dict[str, list[str]],
    start: str,
) -> str:
    """Who waits for whom, from one stuck device round to where the chain closes."""
    sender = {
        (ins.variable, ins.microbatch, ins.gradient): (name, ins)
        for name, each in program.instructions.items()
        for ins in each
        if isinstance(ins, Send)
    }
    steps: list[str] = []
    seen: list[str] = []
    name = start
    while name not in seen:
        seen.append(name)
        instruction = (
            program.instructions[name][at[name]] if at[name] < len(program.instructions[name]) else None
        )
        wanted = _wanted(program, name, instruction, planned) if instruction is not None else []
        missing = [key for key in wanted if received[name].get(key) not in sent]
        if missing and missing[0] not in sender:
            steps.append(f"{name} at its {instruction} waits for '{missing[0][0]}', which nobody sends")
            break
        if not missing and absent.get(name):
            steps.append(f"{name} at its {instruction} waits for a sum that {absent[name][0]} has not begun")
            name = absent[name][0]
            continue
        if not missing:
            steps.append(f"{name} stands at its {instruction or 'end'}")
            break
        peer, send = sender[missing[0]]
        steps.append(f"{name} at its {instruction} waits for {send.what} from {peer}")
        name = peer
    return f"the program cannot complete: {'; '.join(steps)}."


def _is_copy(program: Program, k: str) -> bool:
    variable = program.graph.variables.get(k)
    if variable is None or variable.producer is None:
        return False
    return variable.producer == k and "@" in k
