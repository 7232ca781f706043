"""A training program in which every device steps that has parameters, whatever its graph reads of them.

Batches of other shapes have graphs of their own, which may leave parameters out. A plain optimiser steps on
them all the same: it counts the step, and takes the gradients that earlier batches left.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import ceil

from netsplit.program.check import check_progress
from netsplit.program.instructions import (
    Collective,
    Gather,
    Instruction,
    Program,
    Reduce,
    Reduction,
    Send,
    Step,
)

__all__ = ["stepping_all"]

Holders = dict[str, tuple[str, ...]]


def stepping_all(program: Program, usual: Program) -> Program:
    """The program with a Step on every device that has trained parameters; itself where none lacks one.

    Where devices step last, gradients that wait there are summed, and are in the norm, with the others.

    Args:
        usual: the program by which the devices hold what they hold.
    """
    if not program.training:
        return program
    program = _with_unread_bundles(program, usual)
    read, own = _trained(program), _trained(usual)
    unread = {k: devices for k, devices in own.items() if k not in read}
    having = {device for devices in (read | unread).values() for device in devices}
    late = [name for name in program.devices if name in having and not _steps(program, name)]
    if program.asynchronous or not program.steps_last:  # no gradients wait for another batch
        steps = [(name, Step(number)) for name in late for number in range(_count(program, usual, name))]
        more = program if not steps else _followed(program, steps)
    else:
        more = _summing(program, read | unread, late)
        more = replace(more, unread=unread) if unread else more
    if more is not program:
        check_progress(more)
    return more


def _trained(program: Program) -> Holders:
    """Trained parameters, and the devices that hold them."""
    initializers = program.graph.initializers
    return {k: devices for k, devices in program.holders.items() if initializers[k].requires_grad}


def _steps(program: Program, device: str) -> int:
    return sum(isinstance(ins, Step) for ins in program.instructions[device])


def _count(program: Program, usual: Program, device: str) -> int:
    """Steps on a device in a batch that gives its parameters no gradients."""
    usually = _steps(usual, device) or max(_steps(usual, name) for name in usual.devices)
    return ceil(program.microbatches / ceil(usual.microbatches / usually))


def _summing(program: Program, holders: Holders, late: Collection[str]) -> Program:
    """With sums of what several devices hold, and steps on those that are late."""
    sums = dict.fromkeys(devices for kind, devices in _sums(program) if kind == "gradients")
    known = set(map(frozenset, sums)) | {frozenset(each.devices) for each in program.bundles}
    copied = dict.fromkeys(
        each for each in holders.values() if len(each) > 1 and frozenset(each) not in known
    )
    if not late and not copied:
        return program
    stepping = [name for name in program.devices if name in late or _steps(program, name)]
    every = [ins for each in program.instructions.values() for ins in each]
    taken = [ins.tag + ins.chunks for ins in every if isinstance(ins, Send)]
    taken += [ins.tag + 1 for ins in every if isinstance(ins, Collective)]
    tag = max(taken, default=0)
    tail: list[tuple[str, Instruction]] = []
    normed = any(kind == "norm" for kind, _ in _sums(program))
    summing: list[tuple[Reduction, tuple[str, ...]]] = [("gradients", each) for each in (*sums, *copied)]
    for kind, devices in (*summing, ("norm", tuple(stepping))) if normed else summing:
        tail += [(name, Reduce(devices, tag, kind=kind)) for name in devices]
        tag += 1
    tail += [(name, Step()) for name in stepping]
    for b, bundle in enumerate(program.bundles):
        if bundle.level != "parameters":
            tail += [(name, Gather(bundle.devices, tag, bundle=b)) for name in bundle.devices]
            tag += 1
    return _followed(_before_steps(program), tail)


def _with_unread_bundles(program: Program, usual: Program) -> Program:
    """With what the usual program has in slices and this one does not read: they are stepped on, too."""
    known = {k for bundle in program.bundles for k in bundle.names}
    unread = [
        replace(bundle, names=names, segments=())
        for bundle in usual.bundles
        if (names := tuple(k for k in bundle.names if k not in known))
    ]
    return program if not unread else replace(program, bundles=(*program.bundles, *unread))


def _sums(program: Program) -> list[tuple[Reduction, tuple[str, ...]]]:
    """What is summed, in its order."""
    sums = {ins.tag: ins for each in program.instructions.values() for ins in each if isinstance(ins, Reduce)}
    return [(sums[tag].kind, sums[tag].devices) for tag in sorted(sums)]


def _before_steps(program: Program) -> Program:
    """Only what devices compute and send."""
    computing = {name: each[: program.computing(name)] for name, each in program.instructions.items()}
    left, order = {name: len(each) for name, each in computing.items()}, []
    for name in program.order:
        if left[name]:
            left[name] -= 1
            order.append(name)
    return replace(program, instructions=computing, order=tuple(order))


def _followed(program: Program, tail: Collection[tuple[str, Instruction]]) -> Program:
    own = {
        name: (*each, *(ins for device, ins in tail if device == name))
        for name, each in program.instructions.items()
    }
    return replace(program, instructions=own, order=(*program.order, *(name for name, _ in tail)))
