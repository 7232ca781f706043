"""A timeline as the verifier reads it: its events by segment, micro-batch and variable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from netsplit.graph.ir import INITIALIZER
from netsplit.graph.operators import is_here, written_storages
from netsplit.partition.base import Placement, Problem, device_in_turn
from netsplit.profile.costs import DeviceCosts
from netsplit.program.instructions import Program
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["COMPUTING", "Computation", "Copy", "TimelineIndex", "shown"]

TOLERANCE = 1e-9  # of the iteration: sums of floats in another order differ by less
_OF_WEIGHTS = ("aten.alias.default", "aten.split_with_sizes.default", "aten.cat.default")
COMPUTING = ("forward", "recompute", "backward", "weight")
Computation = tuple[str, int, int]  # kind, segment, micro-batch
Copy = tuple[str, str, int, bool]  # variable, device that has the copy, micro-batch, gradient?


@dataclass
class TimelineIndex:
    """The events of a timeline, by what they are."""

    problem: Problem
    placement: Placement
    program: Program
    timeline: Timeline
    predicted: bool
    segment_of: dict[str, int] = field(default_factory=dict)
    spans: dict[Computation, list[Event]] = field(default_factory=dict)
    sends: dict[Copy, list[Event]] = field(default_factory=dict)
    _messages: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.problem.graph
        self.slack_s = TOLERANCE * max(abs(self.timeline.iteration_s), 1e-12)
        self.kind_of = {device.name: device.kind for device in self.problem.cluster.devices}
        requires_backward = graph.requires_backward
        self.trained = {
            name for name, node in graph.nodes.items() if any(k in requires_backward for k in node.outputs)
        }
        self.microbatches = range(self.program.microbatches)
        self._chunks = {each.variable: each.chunks for each in self.placement.exchanges}
        self.replicas = {s.device: s.replicas for s in self.program.segments if s.replicas}
        self.turns = {s.device: s.turns for s in self.program.segments if s.turns}
        self.update = {
            (ins.segment, ins.microbatch): ins.update  # type: ignore[union-attr]
            for each in self.program.instructions.values()
            for ins in each
            if hasattr(ins, "update")
        }

    @cached_property
    def lasting(self) -> frozenset[str]:
        """Variables that are weights, or made of weights alone, and that nothing writes: all micro-batches
        have the same where no device steps between them, so a device is sent each once, with one gradient
        back."""
        graph = self.problem.graph
        if self.program.asynchronous:
            return frozenset()
        weights = {
            name
            for name, node in graph.nodes.items()
            if node.op in _OF_WEIGHTS
            and not (node.no_grad or node.checkpoint or node.autocast or node.default_dtype)
        }
        if not weights:
            return frozenset()
        written = {
            root
            for node in graph.nodes.values()
            if is_here(graph, node)
            for root in written_storages(graph, node)
        }
        lasting: set[str] = set()
        for name, node in graph.nodes.items():
            memory = [INITIALIZER + k for k in node.initializers]
            memory += [graph.variables[k].alias_of or k for k in node.outputs if k]
            if name in weights and {*node.inputs} <= lasting and not written & {*memory}:
                lasting.update(k for k in node.outputs if k)
        return frozenset(lasting)

    def summing(self) -> list[tuple[str, ...]]:
        """Sets of devices that sum gradients: replicas, and those with copies of one parameter."""
        return list(dict.fromkeys([*self.replicas.values(), *self.copying()]))

    def copying(self) -> list[tuple[str, ...]]:
        """Sets of devices with copies of one parameter, replicas of their stages among them."""
        graph, where = self.problem.graph, self.placement.device_of
        having: dict[str, set[str]] = {}
        for name, node in graph.nodes.items():
            for init in (graph.initializers[k] for k in node.initializers):
                if init.requires_grad:
                    having.setdefault(init.held_as, set()).add(where[name])
        holders = (
            {q for p in each for q in self.replicas.get(p, (p,))} for each in having.values() if len(each) > 1
        )
        return [tuple(p for p in self.kind_of if p in each) for each in holders]

    def on(self, device: str, i: int) -> str:
        """Who computes micro-batch i of what was placed on a device."""
        return device_in_turn(self.turns.get(device, (device,)), i)

    def segments(self) -> Iterator[str]:
        """Every node in one segment, on the node's own device."""
        for s, segment in enumerate(self.program.segments):
            for name in segment.nodes:
                if name not in self.placement.device_of:
                    yield f"Segment {s} has '{name}', which is no node of the graph."
                elif self.placement.device_of[name] != segment.device:
                    yield (
                        f"Segment {s} runs on '{segment.device}' with node '{name}', which was placed on"
                        f" '{self.placement.device_of[name]}'."
                    )
                if segment.turns != self.placement.turns.get(segment.device, segment.turns):
                    yield f"Segment {s} has other turns than its stage on '{segment.device}'."
                if name in self.segment_of:
                    yield f"Node '{name}' is in segment {self.segment_of[name]} and in segment {s}."
                self.segment_of[name] = s
        for name in self.problem.graph.nodes:
            if name not in self.segment_of:
                yield f"Node '{name}' is in no segment."

    def events(self) -> Iterator[str]:
        for e in self.timeline.events:
            if e.device not in self.kind_of:
                yield f"The {shown(e)} is on '{e.device}', which is no device of the cluster."
            if not (math.isfinite(e.start_s) and math.isfinite(e.end_s) and 0 <= e.start_s <= e.end_s):
                yield f"The {shown(e)} spans {e.start_s} s to {e.end_s} s."

    def sort(self) -> Iterator[str]:
        """Sort events by what they are; name those that belong to nothing."""
        graph = self.problem.graph
        names = {f"segment {s}": s for s in range(len(self.program.segments))}
        for e in self.timeline.events:
            if e.kind in COMPUTING:
                s = names.get(e.name)
                if s is None or e.microbatch not in self.microbatches:
                    yield f"The {shown(e)} belongs to no segment and micro-batch of the program."
                    continue
                if e.device != (home := self.on(self.program.segments[s].device, e.microbatch)):
                    yield f"The {shown(e)} is on '{e.device}', not on '{home}'."
                self.spans.setdefault((e.kind, s, e.microbatch), []).append(e)
            elif e.kind == "send":
                gradient = e.name not in graph.variables and e.name.startswith("gradient of ")
                k = e.name.removeprefix("gradient of ") if gradient else e.name
                if k not in graph.variables or e.microbatch not in self.microbatches:
                    yield f"The {shown(e)} carries no variable and micro-batch of the graph."
                    continue
                copy = e.device if gradient else e.peer
                home = e.peer if gradient else e.device
                if graph.variables[k].producer is None or home != self._has_it_from(k, copy, e.microbatch):
                    yield f"The {shown(e)} is from '{e.device}' to '{e.peer}', but '{k}' does not go so."
                if e.nbytes not in self.messages_of(k):
                    yield f"The {shown(e)} has {e.nbytes} bytes of the {graph.variables[k].nbytes} of '{k}'."
                self.sends.setdefault((k, copy, e.microbatch, gradient), []).append(e)

    def messages_of(self, k: str) -> tuple[int, ...]:
        """Bytes of what a variable goes in, on each of its ways: its chunks, as even as elements allow."""
        if k not in self._messages:
            variable = self.problem.graph.variables[k]
            elements = math.prod(variable.shape)
            chunks = max(min(self._chunks.get(k, 1), elements), 1)
            one = variable.nbytes // elements if elements else 0
            ends = [elements * n // chunks * one for n in range(chunks + 1)]
            self._messages[k] = tuple(end - start for start, end in pairwise(ends))
        return self._messages[k]

    @cached_property
    def handed_on(self) -> dict[tuple[str, str], str]:
        """(variable, device it was placed on that reads it) -> the one that hands it on, by the placement."""
        return {
            (each.variable, q): p
            for each in self.placement.exchanges
            for p, q in each.hops
            if p != self.placement.device_of[self.problem.graph.variables[each.variable].producer or ""]
        }

    def _has_it_from(self, k: str, copy: str, i: int) -> str:
        """The device that sends a device micro-batch i of a variable."""
        home = self.placement.device_of[self.problem.graph.variables[k].producer or ""]
        known = (p for (name, q), p in self.handed_on.items() if name == k and self.on(q, i) == copy)
        return self.on(next(known, home), i)

    def costs_of(self, device: str) -> DeviceCosts:
        return self.problem.costs.of(self.kind_of.get(device, ""))


def shown(e: Event) -> str:
    part = "" if e.microbatch < 0 else f" of micro-batch {e.microbatch}"
    if e.kind == "step":
        return f"optimiser step on '{e.device}'"
    return e.name if e.kind == "reduce" else f"{e.kind} of {e.name}{part}"
