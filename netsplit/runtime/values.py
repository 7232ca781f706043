"""Tensors alive in one iteration on one device: values, arrivals, what backwards will need, gradients."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from netsplit.graph.deferral.deferred import WeightGradients
from netsplit.graph.ir import TRANSFER
from netsplit.graph.remembered import KeptResults
from netsplit.program.instructions import (
    Backward,
    Collective,
    Instruction,
    Program,
    Recv,
    Segment,
    Send,
    copies_of,
)
from netsplit.runtime.transport.handle import Handle

__all__ = [
    "Absent",
    "Context",
    "HeldBack",
    "IterationValues",
    "Key",
    "backwards_of",
    "last_read",
    "places_of_copies",
    "readers_of",
    "sum_of",
    "way_of",
]

Key = tuple[str, int]  # variable, micro-batch
Absent = frozenset[Key]
"""Gradients "k@q" of which there is none, as code that stays whole took another way: plain PyTorch leaves
parameters without one there, which is not one of zeros. What is sent for them is not known to be none before
the iteration has been computed; then it is computed once more."""


@dataclass
class Context:
    """What one forward leaves for its backward."""

    leaves: dict[str, Tensor]  # inputs; of a recomputed forward all, else those that want a gradient
    outputs: dict[str, Tensor]  # with autograd; empty where the forward is to be computed again
    weights: dict[str, Tensor] | None = None  # the version that the forward used, where there are several
    buffers: dict[str, Tensor] | None = None  # that it wrote, as they were, to compute it again
    deferred: WeightGradients | None = None
    results: KeptResults | None = None  # of a forward that is to be computed again


@dataclass(eq=False)
class HeldBack:
    """A send that waits for what it hands on: chunk by chunk, where it goes so."""

    send: Send
    keys: tuple[tuple[str, int, bool], ...]  # of what must have come; see `Program.handed_on`
    begun: list[Handle] = field(default_factory=list)  # of its messages
    terms: list[list[Tensor]] = field(default_factory=list)  # what it hands on the sum of, chunk by chunk
    total: list[Tensor] = field(default_factory=list)  # that sum, where there are several terms

    def chunk(self, number: int) -> Tensor:
        """One of the sum, added up as `sum_of` does; of terms that have come so far."""
        first, *others = (term[number] for term in self.terms)
        for other in others:
            first = torch.add(first, other, out=self.total[number])
        return first


@dataclass
class IterationValues:
    """State of one iteration. `fractions[i]` is the part of micro-batch i's loss in what is minimised."""

    feeds: list[dict[str, Tensor]]
    fractions: list[float] = field(default_factory=list)
    readers: dict[Key, int] = field(default_factory=dict)  # forwards and sends still to come
    values: dict[Key, Tensor] = field(default_factory=dict)
    arriving: dict[tuple[str, int, bool], tuple[Recv, Handle]] = field(default_factory=dict)
    contexts: dict[tuple[int, int], Context] = field(default_factory=dict)
    parts: dict[Key, list[tuple[int, Tensor]]] = field(default_factory=dict)  # of gradients, with places
    to_come: dict[Key, int] = field(default_factory=dict)  # backwards, of what lasts or is pooled (`Program`)
    sums: dict[str, tuple[Tensor, bool]] = field(default_factory=dict)
    """Gradients of what lasts or is pooled, over the micro-batches; True: in a tensor of their own."""
    sending: dict[int, tuple[Send, Handle]] = field(default_factory=dict)  # by tag
    watched: deque[int] = field(default_factory=deque)  # tags of those whose end is watched for
    held_back: list[HeldBack] = field(default_factory=list)
    unfinished: list[tuple[Instruction, Send | Recv | Collective, Handle]] = field(default_factory=list)
    """Messages that a GPU's stream waits for, and perhaps still does: see `HandingOn.settle`."""
    absent: Absent = frozenset()  # what arrives for these are zeros that nobody adds
    nothing: set[Key] = field(default_factory=set)  # for which zeros were sent
    outputs: dict[Key, Tensor] = field(default_factory=dict)

    def use(self, k: str, i: int) -> Tensor:
        """The value of a variable; forgotten here once the last that reads it has it."""
        self.readers[k, i] -= 1
        if self.readers[k, i]:
            return self.values[k, i]
        return self.values.pop((k, i))

    def add_gradient(self, k: str, i: int, place: int, grad: Tensor) -> None:
        self.parts.setdefault((k, i), []).append((place, grad))

    def collect(self, k: str, i: int, backwards: int) -> None:
        """Note one of so many backwards of micro-batch i that read such a `k`: add what they gave to the sum
        once all are over, as a parameter would have it.
        """
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
        """The sum of a variable's gradients over the micro-batches, which are forgotten here."""
        total, _ = self.sums.pop(k, (None, False))
        return total

    def total_gradient(self, k: str, i: int) -> Tensor | None:
        """Sum of a variable's gradients, the last reader's first as plain autograd has it."""
        return sum_of(self.gradients(k, i))

    def gradients(self, k: str, i: int) -> list[Tensor]:
        """What `total_gradient` adds, in its order; forgotten here."""
        parts = self.parts.pop((k, i), [])
        if len(parts) > 1:
            parts.sort(key=lambda part: -part[0])
        return [part for _, part in parts]


def sum_of(terms: Sequence[Tensor]) -> Tensor | None:
    """The sum of gradients, added one after another; None of none."""
    total: Tensor | None = None
    for term in terms:
        total = term if total is None else total + term
    return total


def readers_of(program: Program, device: str, segments: Mapping[int, Segment]) -> Counter[Key]:
    """How often a variable is read on a device: by its segments, and by sends of its value."""
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
    """Output of a segment, or what one reads -> its copies "k@q" on other devices, and where in the graph
    each, or one that is made of it, is last read."""
    graph = program.graph

    def last(copy: str) -> int:
        return max(
            last(v) if graph.nodes[v].op == TRANSFER else graph.position[v]
            for v in graph.variables[copy].consumers
        )

    names = {k for segment in segments.values() for k in (*segment.outputs, *segment.inputs)}
    return {k: tuple((copy, last(copy)) for copy in copies_of(graph, k)) for k in names}


def backwards_of(program: Program, device: str, segments: Mapping[int, Segment]) -> Counter[str]:
    """The number of backwards of a micro-batch that make gradients of what lasts or is pooled."""
    trained = {
        ins.segment
        for ins in program.instructions[device]
        if isinstance(ins, Backward) and ins.part != "weight"
    }
    summed = program.lasting | program.pooled
    return Counter(k for s in trained for k in segments[s].inputs if k in summed)


def last_read(program: Program, segment: Segment, k: str) -> int:
    """Where in the graph a segment last reads a variable: gradients are summed from the last reader on."""
    graph = program.graph
    inside = set(segment.nodes)
    return max(graph.position[v] for v in graph.variables[k].consumers if v in inside)


def way_of(transfer: Send | Recv | Collective) -> str:
    """ "variable 'x' of micro-batch 0 from cpu:1"."""
    if isinstance(transfer, Collective):
        return f"the {transfer}"
    return f"{transfer.what} {'to reach' if isinstance(transfer, Send) else 'from'} {transfer.peer}"
