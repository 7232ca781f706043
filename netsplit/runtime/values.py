"""Tensors alive in one iteration on one device: values, arrivals, saved inputs, gradients; older weights of
micro-batches in flight (weight stashing); copies to undo an iteration.

A forward reads leaves that share the parameters' storage. Before a Step, if micro-batches are in flight, the
parameters move to new storage: the old one lives as long as those micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor

from netsplit.graph.deferral.deferred import WeightGradients
from netsplit.graph.ir import TRANSFER
from netsplit.graph.remembered import KeptResults
from netsplit.program.instructions import (
    Backward,
    Collective,
    Forward,
    Instruction,
    Program,
    Recv,
    Segment,
    Send,
    Step,
    copies_of,
)
from netsplit.runtime.share import Share
from netsplit.runtime.transport.handle import Handle

__all__ = [
    "Absent", "Before", "Context", "HeldBack", "IterationValues", "Key", "WeightVersions", "backwards_of",
    "last_read", "places_of_copies", "readers_of", "sum_of", "versions_of", "way_of",
]  # fmt: skip

Key = tuple[str, int]  # variable, micro-batch
Absent = frozenset[Key]
"""Gradients "k@q" that uncaptured code did not give: plain PyTorch leaves None there rather than zeros. This
is known only after an iteration has been computed, which is then computed once more."""


@dataclass
class Context:
    """What one forward leaves for its backward."""

    leaves: dict[str, Tensor]  # inputs that need a gradient; all if recomputed
    outputs: dict[str, Tensor]  # with autograd; empty if recomputed
    weights: dict[str, Tensor] | None = None  # the forward's version, if there are several
    buffers: dict[str, Tensor] | None = None  # earlier values of those it wrote, to recompute
    deferred: WeightGradients | None = None
    results: KeptResults | None = None  # of a forward that is to be computed again


class HeldBack(NamedTuple):
    """A send that waits for what it hands on."""

    send: Send
    keys: tuple[tuple[str, int, bool], ...]  # must have arrived; see `Program.handed_on`


@dataclass
class IterationValues:
    """State of one iteration. `fractions[i]` is micro-batch i's weight in the loss."""

    feeds: list[dict[str, Tensor]]
    fractions: list[float] = field(default_factory=list)
    readers: dict[Key, int] = field(default_factory=dict)  # forwards and sends still to come
    values: dict[Key, Tensor] = field(default_factory=dict)
    arriving: dict[tuple[str, int, bool], tuple[Recv, Handle]] = field(default_factory=dict)
    contexts: dict[tuple[int, int], Context] = field(default_factory=dict)
    parts: dict[Key, list[tuple[int, Tensor]]] = field(default_factory=dict)  # of gradients, with places
    to_come: dict[Key, int] = field(default_factory=dict)  # backwards, of what lasts or is pooled (`Program`)
    sums: dict[str, tuple[Tensor, bool]] = field(default_factory=dict)  # of gradients; True: not a view
    sending: dict[int, tuple[Send, Handle]] = field(default_factory=dict)  # by tag
    held_back: list[HeldBack] = field(default_factory=list)
    # messages a GPU's stream may still wait for, see `HandingOn.settle`
    unfinished: list[tuple[Instruction, Send | Recv | Collective, Handle]] = field(default_factory=list)
    absent: Absent = frozenset()  # arriving zeros that are not added
    nothing: set[Key] = field(default_factory=set)  # sent as zeros
    outputs: dict[Key, Tensor] = field(default_factory=dict)

    def use(self, k: str, i: int) -> Tensor:
        """A variable's value; dropped after its last reader."""
        self.readers[k, i] -= 1
        if self.readers[k, i]:
            return self.values[k, i]
        return self.values.pop((k, i))

    def add_gradient(self, k: str, i: int, place: int, grad: Tensor) -> None:
        self.parts.setdefault((k, i), []).append((place, grad))

    def collect(self, k: str, i: int, backwards: int) -> None:
        """Count a backward of micro-batch i that reads `k`; the last one adds the sum."""
        left = self.to_come[k, i] = self.to_come.get((k, i), backwards) - 1
        total = None if left else self.total_gradient(k, i)
        if total is None:
            return
        if k not in self.sums:
            self.sums[k] = total, False
            return
        before, own = self.sums[k]
        self.sums[k] = (before.add_(total) if own else before + total), True

    def sum_of(self, k: str) -> Tensor | None:
        """Take the sum of a variable's gradients over the micro-batches."""
        total, _ = self.sums.pop(k, (None, False))
        return total

    def total_gradient(self, k: str, i: int) -> Tensor | None:
        """Sum of a variable's gradients, the last reader's first as in plain autograd."""
        return sum_of(self.gradients(k, i))

    def gradients(self, k: str, i: int) -> list[Tensor]:
        """Take the terms of `total_gradient`, in its order."""
        parts = self.parts.pop((k, i), [])
        if len(parts) > 1:
            parts.sort(key=lambda part: -part[0])
        return [part for _, part in parts]


def sum_of(terms: Sequence[Tensor]) -> Tensor | None:
    total: Tensor | None = None
    for term in terms:
        total = term if total is None else total + term
    return total


def readers_of(program: Program, device: str, segments: Mapping[int, Segment]) -> Counter[Key]:
    """How often a device reads a variable, in segments and sends."""
    counts: Counter[Key] = Counter()
    for segment in segments.values():
        for i in range(program.microbatches):
            if segment.on(i) == device:
                counts.update((k, program.sent_with(k, device, i)) for k in segment.inputs)
    for ins in program.instructions[device]:
        if isinstance(ins, Send) and not ins.gradient:
            counts[ins.read, program.sent_with(ins.read, device, ins.microbatch)] += 1
    return counts


def places_of_copies(
    program: Program, segments: Mapping[int, Segment]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """Variable -> its copies "k@q" elsewhere, each with the place of its last reader in the graph."""
    graph = program.graph

    def last(copy: str) -> int:
        return max(
            last(v) if graph.nodes[v].op == TRANSFER else graph.position[v]
            for v in graph.variables[copy].consumers
        )

    names = {k for segment in segments.values() for k in (*segment.outputs, *segment.inputs)}
    return {k: tuple((copy, last(copy)) for copy in copies_of(graph, k)) for k in names}


def backwards_of(program: Program, device: str, segments: Mapping[int, Segment]) -> Counter[str]:
    """The number of a micro-batch's backwards that give gradients of lasting or pooled variables."""
    trained = {
        ins.segment
        for ins in program.instructions[device]
        if isinstance(ins, Backward) and ins.part != "weight"
    }
    summed = program.lasting | program.pooled
    return Counter(k for s in trained for k in segments[s].inputs if k in summed)


def last_read(program: Program, segment: Segment, k: str) -> int:
    """Place in the graph where a segment last reads a variable; gradients are summed from the last on."""
    graph = program.graph
    inside = set(segment.nodes)
    return max(graph.position[v] for v in graph.variables[k].consumers if v in inside)


def way_of(transfer: Send | Recv | Collective) -> str:
    """ "variable 'x' of micro-batch 0 from cpu:1"."""
    if isinstance(transfer, Collective):
        return f"the {transfer}"
    return f"{transfer.what} {'to reach' if isinstance(transfer, Send) else 'from'} {transfer.peer}"


class WeightVersions:
    """Versions of a device's parameters within one iteration, and the gradients of each Step.

    `parameters` always hold the newest weights; `needed` says how many forwards use a version.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], needed: Mapping[int, int]) -> None:
        self.parameters = dict(parameters)
        self.needed = dict(needed)
        self.gradients: dict[int, dict[str, Tensor]] = {}
        self.begin()

    def begin(self) -> None:
        self.left = dict(self.needed)
        self.leaves = {0: self._leaves()}
        self.newest = 0

    def use(self, version: int) -> dict[str, Tensor]:
        """The leaves for one forward; dropped after the last forward that uses them."""
        leaves = self.leaves[version]
        self.left[version] -= 1
        if not self.left[version] and version != self.newest:
            del self.leaves[version]
        return leaves

    def collect(self, leaves: Mapping[str, Tensor], names: Iterable[str], step: int) -> None:
        """Move the leaves' gradients to those of a Step."""
        sums = self.gradients.setdefault(step, {})
        for name in names:
            grad = leaves[name].grad
            if grad is None:
                continue
            leaves[name].grad = None
            sums[name] = grad if name not in sums else sums[name].add_(grad)

    def before_step(self, step: int) -> None:
        """Give the optimiser its gradients, and weights storage that no forward uses."""
        gradients = self.gradients.pop(step, {})
        for name, parameter in self.parameters.items():
            parameter.grad = gradients.get(name)
            parameter.data = parameter.data.clone()

    def after_step(self) -> None:
        if not self.left.get(self.newest):
            self.leaves.pop(self.newest, None)
        self.newest += 1
        self.leaves[self.newest] = self._leaves()

    def _leaves(self) -> dict[str, Tensor]:
        return {name: parameter.data.requires_grad_() for name, parameter in self.parameters.items()}


def versions_of(
    instructions: Iterable[Instruction],
    parameters: Mapping[str, torch.nn.Parameter],
    trains: Callable[[int], bool],
) -> WeightVersions | None:
    """None if all forwards use the same weights; `trains`: whether a segment has parameters."""
    own = list(instructions)
    if not any(isinstance(ins, Step) and ins.number for ins in own):
        return None
    needed = Counter(ins.version for ins in own if isinstance(ins, Forward) and trains(ins.segment))
    return WeightVersions(parameters, needed)


@dataclass(frozen=True)
class Before:
    """Copies of what forwards write, and of gradients that wait for a later step."""

    written: dict[str, Tensor]
    gradients: dict[str, Tensor] | None  # None: a prediction, which touches none

    @classmethod
    def of(cls, share: Share, written: Iterable[str], training: bool) -> Self:
        copies = {k: share.tensors[k].detach().clone() for k in written}
        if not training:
            return cls(copies, None)
        every = share.parameters | share.stepped
        return cls(copies, {k: p.grad.clone() for k, p in every.items() if p.grad is not None})

    def restore(self, share: Share) -> None:
        """Restore the copies, once."""
        with torch.no_grad():
            for k, tensor in self.written.items():
                share.tensors[k].detach().copy_(tensor)
        if self.gradients is None:
            return
        for k, parameter in (share.parameters | share.stepped).items():
            parameter.grad = self.gradients.get(k)
