"""Consecutive nodes of a graph, run one by one and, for comparison, as one piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from netsplit.graph.autocast import autocast_of
from netsplit.graph.ir import Graph
from netsplit.graph.module import path_of_tensor, rebuild
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.measure.bench import NodeBench, random_like
from netsplit.profile.measure.clock import Clock, Lap
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.split import SplitBackward

__all__ = ["Window", "adjusted_to_sum", "windows"]

SMALLEST_S = 1e-7  # no operator and no backward of one is cheaper than this


class Window:
    """Runs its nodes alone, all forward and then all backward, and as the segment that they would be.

    The segment computes `in_flight` micro-batches forward before their backwards, as a schedule does: with
    more of them a backward finds its tensors outside the caches.
    """

    def __init__(
        self,
        graph: Graph,
        benches: list[NodeBench],
        values: Mapping[str, Tensor],
        requires_backward: frozenset[str],
        clock: Clock,
        in_flight: int = 1,
    ) -> None:
        self.benches = benches
        self.clock = clock
        self.in_flight = in_flight
        self.nodes = [bench.node for bench in benches]
        self.inputs, self.outputs = _borders(graph, [node.name for node in self.nodes])
        self.requires_backward = requires_backward
        self.initializers = list(dict.fromkeys(name for node in self.nodes for name in node.initializers))
        self.segment = _Timed(self._module(graph, values, deferrable=False), clock)
        self.backward: list[Lap] = []
        self.split = SplitBackward.of(graph, self.nodes, clock)
        if self.split is not None:
            self.split.module = self._module(graph, values, deferrable=True)

    def run(self, live: LiveValues) -> None:
        """Once together, once with the backward in two parts, and once one by one."""
        inputs, tensors = self._copies(live)
        self._run_together(live.graph, inputs, tensors)
        if self.split is not None:
            with autocast_of(live.graph, self.clock.device):
                results = functional_call(_Plain(self.split.module), tensors, _cloned(inputs))
            names = {id(t): k for k, t in zip(self.initializers, tensors.values(), strict=True)}
            self.split.run(self._ends(results), names)
            del results
        contexts = [bench.run_forward(live) for bench in self.benches]
        gradients: dict[str, Tensor] = {}
        for bench in reversed(self.benches):
            bench.run_backward(contexts.pop(), gradients)

    def _copies(self, live: LiveValues) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Copies of all that the window's nodes could write, so that the live values stay as they are."""
        inputs = tuple(live.leaf(("var", k)) for k in self.inputs)
        tensors = {f"module.{path_of_tensor(k)}": live.leaf(("init", k)) for k in self.initializers}
        return inputs, {k: t if t.requires_grad else t.clone() for k, t in tensors.items()}

    def _run_together(
        self, graph: Graph, inputs: tuple[Tensor, ...], tensors: dict[str, Tensor]
    ) -> list[Tensor]:
        """Outputs of the last of the micro-batches, detached."""
        outputs: list[list[Tensor]] = []
        last: list[Tensor] = []
        with torch.enable_grad():
            for _ in range(self.in_flight):
                with autocast_of(graph, self.clock.device):
                    results = functional_call(self.segment, tensors, _cloned(inputs))
                last = [t.detach() for t in results]
                outputs.append(self._ends(results))
                del results
        for ends in outputs:
            if ends:
                seeds = [random_like(t) for t in ends]
                start = self.clock.now()
                torch.autograd.backward(ends, seeds)
                ends.clear()  # what the forward kept is let go in a backward's time
                self.backward.append((start, self.clock.now()))
        return last

    def _ends(self, results: tuple[Tensor, ...]) -> list[Tensor]:
        return [t for k, t in zip(self.outputs, results, strict=True) if k in self.requires_backward]

    def _module(self, graph: Graph, values: Mapping[str, Tensor], *, deferrable: bool) -> nn.Module:
        return rebuild(
            graph,
            values,
            nodes=[node.name for node in self.nodes],
            inputs=self.inputs,
            outputs=self.outputs,
            device=self.clock.device,
            deferrable=deferrable,
        )

    @property
    def together_s(self) -> float:
        """Seconds of the last micro-batches in flight together, forward and backward."""
        n = self.in_flight
        return sum(self.clock.seconds(self.segment.laps[-n:])) + sum(self.clock.seconds(self.backward[-n:]))

    def seconds(self, timed: list[int], engine_call_s: float) -> dict[str, NodeSeconds]:
        """Of each node: its median alone, fitted so that the nodes add up to the window as one piece."""
        forward = {b.node.name: self._median(b.forward, timed) for b in self.benches}
        backward = {b.node.name: self._median(b.backward, timed) for b in self.benches if b.backward}
        forward = adjusted_to_sum(forward, self._together(self.segment.laps, timed))
        weights: dict[str, float] = {}
        if backward:
            backward = adjusted_to_sum(backward, self._together(self.backward, timed) - engine_call_s)
            weights = {} if self.split is None else self.split.weight_seconds(timed, backward)
        return {
            name: NodeSeconds(forward_s, backward.get(name, 0.0), weights.get(name, 0.0))
            for name, forward_s in forward.items()
        }

    def _median(self, laps: list[Lap], timed: list[int]) -> float:
        return max(median(self.clock.seconds([laps[walk] for walk in timed])), SMALLEST_S)

    def _together(self, laps: list[Lap], timed: list[int]) -> float:
        """Median over walks of the mean over the micro-batches of a walk."""
        n = self.in_flight
        means = [sum(self.clock.seconds(laps[walk * n : (walk + 1) * n])) / n for walk in timed]
        return max(median(means), SMALLEST_S)


def _cloned(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.clone() for t in inputs)


class _Plain(nn.Module):
    """A module under the name that the window's tensors have."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module.forward(*inputs)


class _Timed(nn.Module):
    """A module whose forward is timed without what surrounds it."""

    def __init__(self, module: nn.Module, clock: Clock) -> None:
        super().__init__()
        self.module = module
        self.clock = clock
        self.laps: list[Lap] = []

    def forward(self, *inputs: Tensor) -> Any:
        start = self.clock.now()
        results = self.module.forward(*inputs)
        self.laps.append((start, self.clock.now()))
        return results


def adjusted_to_sum(alone: Mapping[str, float], together: float) -> dict[str, float]:
    """Seconds of nodes measured `alone`, changed to add up to what they take `together`.

    Timed alone, every node pays for a call of its own: the clock, and the engine in backward. What the
    sum is too large by is therefore taken off evenly, down to `SMALLEST_S`; what it is too small by,
    for want of what only a whole segment does, is spread in proportion.
    """
    total = sum(alone.values())
    if total <= together:
        return {name: seconds * together / total for name, seconds in alone.items()}

    def less(each_s: float) -> dict[str, float]:
        return {name: max(seconds - each_s, SMALLEST_S) for name, seconds in alone.items()}

    most = max(alone.values())
    if sum(less(most).values()) >= together:
        return less(most)
    from scipy.optimize import brentq  # half a second to load, which only a measurement needs

    return less(brentq(lambda each_s: sum(less(each_s).values()) - together, 0.0, most, xtol=1e-15))


def windows(graph: Graph, window_bytes: int) -> Iterator[list[str]]:
    """The nodes in order, cut into runs that keep at most `window_bytes`; no unit is cut."""
    last = {name: max(graph.position[n] for n in unit) for unit in graph.units for name in unit}
    window: list[str] = []
    used, uncut = 0, -1
    for node in graph:
        own = node.saved_bytes + sum(graph.variables[k].nbytes for k in node.outputs if k)
        own += sum(graph.initializers[k].nbytes for k in node.initializers)
        if window and used + own > window_bytes and graph.position[node.name] > uncut:
            yield window
            window, used = [], 0
        window.append(node.name)
        used += own
        uncut = max(uncut, last.get(node.name, -1))
    if window:
        yield window


def _borders(graph: Graph, nodes: list[str]) -> tuple[list[str], list[str]]:
    """Variables that the nodes read from outside, and those of theirs that are read outside."""
    inside = set(nodes)
    produced = [k for name in nodes for k in graph.nodes[name].outputs if k]
    read = dict.fromkeys(k for name in nodes for k in graph.nodes[name].inputs)
    inputs = [k for k in read if graph.variables[k].producer not in inside]
    outputs = [
        k
        for k in produced
        if k in graph.output_variables or any(v not in inside for v in graph.variables[k].consumers)
    ]
    return inputs, outputs
