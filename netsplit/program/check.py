"""Proof of progress by a run without data, before anything is spawned (invariant 2).

Sends return at once in that run. NCCL's end only with their receive and may block their device: all devices
must then follow one common order of transfers and sums.
"""

from __future__ import annotations

from collections import Counter
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

_Key = tuple[str, int, bool]  # variable, micro-batch, gradient?


def needs(program: Program, instruction: Instruction) -> list[_Key]:
    """The transfers an instruction waits for, whether or not they exist: a Forward for the copies it reads, a
    Backward for gradients of its outputs from other devices; of a Send see `Program.handed_on`."""
    if isinstance(instruction, Forward):
        segment, i = program.segments[instruction.segment], instruction.microbatch
        copies = [k for k in segment.inputs if _is_copy(program, k)]
        return [(k, program.sent_with(k, segment.on(i), i), False) for k in copies]
    if isinstance(instruction, Backward) and instruction.part != "weight":
        segment, i = program.segments[instruction.segment], instruction.microbatch
        copies = [
            v for k in segment.outputs for v in program.graph.variables[k].consumers if _is_copy(program, v)
        ]
        return [(copy, i, True) for copy in copies if program.gives_back(copy, i)]
    return []


def check_progress(program: Program) -> None:
    """Run the program without data.

    Raises:
        DeadlockError: some device can never go on, or could not if sends waited for their receives; names
            what devices wait for, or the transfer without a partner.
    """
    every = (ins for each in program.instructions.values() for ins in each)
    transfers = [ins for ins in every if isinstance(ins, Send | Recv)]
    planned = {(ins.variable, ins.microbatch, ins.gradient) for ins in transfers}
    ends = Counter(ins.tag for ins in transfers)
    if alone := next((ins for ins in transfers if ends[ins.tag] != 2), None):
        raise DeadlockError(f"the program's {alone} has no counterpart.")
    sent: set[int] = set()
    summing: dict[int, set[str]] = {}  # tag of a sum or gathering -> devices yet to reach it
    begun: dict[str, list[Collective]] = {name: [] for name in program.devices}  # sums to wait for
    received: dict[str, dict[_Key, int]] = {name: {} for name in program.devices}
    at = dict.fromkeys(program.devices, 0)
    asleep: dict[tuple[bool, int | None], list[str]] = {}  # (a sum?, tag) -> who waits for it
    lacking: dict[str, _Key | Collective] = {}  # device -> what it waited for last
    awake = list(program.devices)
    while awake:
        name = awake.pop()
        while at[name] < len(program.instructions[name]):
            instruction = program.instructions[name][at[name]]
            waits: list[tuple[_Key | Collective, tuple[bool, int | None]]] = [
                (key, (False, tag))  # None: its own Recv comes later
                for key in _wanted(program, name, instruction, planned)
                if (tag := received[name].get(key)) not in sent
            ]
            if begun[name] and not isinstance(instruction, Send | Recv):
                begun[name] = [each for each in begun[name] if summing[each.tag]]
                computes = isinstance(instruction, Forward | Backward)
                waited = [each for each in begun[name] if not computes or isinstance(each, Gather)]
                waits += [(each, (True, each.tag)) for each in waited]
            if waits:
                lacking[name], until = waits[0]
                asleep.setdefault(until, []).append(name)
                break
            if isinstance(instruction, Send):
                sent.add(instruction.tag)
                awake += asleep.pop((False, instruction.tag), ())
            elif isinstance(instruction, Recv):
                key = instruction.variable, instruction.microbatch, instruction.gradient
                received[name][key] = instruction.tag
            elif isinstance(instruction, Collective):
                summing.setdefault(instruction.tag, {*instruction.devices} & {*at}).discard(name)
                begun[name].append(instruction)
                if not summing[instruction.tag]:
                    awake += asleep.pop((True, instruction.tag), ())
            at[name] += 1
    stuck = [
        f"{name} at its {program.instructions[name][at[name]]} waits for {_said(lacking[name], planned)}"
        for name in program.devices
        if at[name] < len(program.instructions[name])
    ]
    if stuck:
        raise DeadlockError(f"the program cannot complete: {'; '.join(stuck)}.")
    _check_order(program)


def _wanted(program: Program, device: str, instruction: Instruction, planned: set[_Key]) -> list[_Key]:
    """Values an instruction reads, and the transferred gradients among them."""
    if isinstance(instruction, Send):
        return list(program.handed_on(instruction, device))
    return [key for key in needs(program, instruction) if not key[2] or key in planned]


def _said(lacking: _Key | Collective, planned: set[_Key]) -> str:
    if isinstance(lacking, Collective):
        return f"others to reach the {lacking}"
    k, i, gradient = lacking
    what = f"{'the gradient of ' * gradient}'{k}' of micro-batch {i}"
    return what if lacking in planned else f"{what}, which no device sends"


def _check_order(program: Program) -> None:
    """Check that all devices agree with one order of transfers and sums."""
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
        circle = ", then ".join(str(ins_of[tag]) for tag in error.args[1])
        raise DeadlockError(
            "the program deadlocks if sends wait for their receives, as with NCCL; devices wait in a circle: "
            f"{circle}."
        ) from error


def _is_copy(program: Program, k: str) -> bool:
    variable = program.graph.variables.get(k)
    return variable is not None and variable.producer == k and "@" in k
