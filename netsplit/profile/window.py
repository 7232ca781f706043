"""Consecutive nodes of a graph, run one by one and, for comparison, as one piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.profile.bench import NodeBench, random_like
from netsplit.profile.clock import Clock, Lap
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.frontier import Frontier

__all__ = ["Window", "fitted", "windows"]

SMALLEST_S = 1e-7  # no operator and no backward of one is cheaper than this


class Window:
    """Runs its nodes alone, all forward and then all backward, and as the segment that they would be."""

    def __init__(
        self,
        graph: Graph,
        benches: list[NodeBench],
        values: Mapping[str, Tensor],
        carrying: frozenset[str],
        clock: Clock,
    ) -> None:
        self.benches = benches
        self.clock = clock
        self.nodes = [bench.node for bench in benches]
        self.inputs, self.outputs = _borders(graph, [node.name for node in self.nodes])
        self.carrying = carrying
        self.initializers = list(dict.fromkeys(name for node in self.nodes for name in node.initializers))
        self.segment = _Timed(
            rebuild(
                graph,
                values,
                nodes=[node.name for node in self.nodes],
                inputs=self.inputs,
                outputs=self.outputs,
                device=clock.device,
            ),
            clock,
        )
        self.backward: list[Lap] = []

    def run(self, frontier: Frontier) -> None:
        self._run_together(frontier)
        contexts = [bench.run_forward(frontier) for bench in self.benches]
        gradients: dict[str, Tensor] = {}
        for bench in reversed(self.benches):
            bench.run_backward(contexts.pop(), gradients)

    def _run_together(self, frontier: Frontier) -> None:
        """On copies of all that the window's nodes could write, so that the frontier is left as it was."""
        inputs = tuple(frontier.leaf(("var", k)).clone() for k in self.inputs)
        tensors = {f"module.{name}": frontier.leaf(("init", name)) for name in self.initializers}
        tensors = {k: t if t.requires_grad else t.clone() for k, t in tensors.items()}
        with torch.enable_grad():
            results = dict(zip(self.outputs, functional_call(self.segment, tensors, inputs), strict=True))
        ends = [t for k, t in results.items() if k in self.carrying]
        if not ends:
            return
        seeds = [random_like(t) for t in ends]
        start = self.clock.now()
        torch.autograd.backward(ends, seeds)
        self.backward.append((start, self.clock.now()))

    def seconds(self, timed: list[int], engine_call_s: float) -> dict[str, NodeSeconds]:
        """Of each node: its median alone, fitted so that the nodes add up to the window as one piece."""
        forward = {b.node.name: self._median(b.forward, timed) for b in self.benches}
        backward = {b.node.name: self._median(b.backward, timed) for b in self.benches if b.backward}
        forward = fitted(forward, self._median(self.segment.laps, timed))
        if backward:
            backward = fitted(backward, self._median(self.backward, timed) - engine_call_s)
        return {name: NodeSeconds(forward_s, backward.get(name, 0.0)) for name, forward_s in forward.items()}

    def _median(self, laps: list[Lap], timed: list[int]) -> float:
        return max(median(self.clock.seconds([laps[walk] for walk in timed])), SMALLEST_S)


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


def fitted(alone: Mapping[str, float], together: float) -> dict[str, float]:
    """Seconds of nodes measured `alone`, changed to add up to what they take `together`.

    Timed alone, every node pays for a call of its own: the clock, and the engine in backward. What the
    sum is too large by is therefore taken off evenly, down to `SMALLEST_S`; what it is too small by,
    for want of what only a whole segment does, is spread in proportion.
    """
    total = sum(alone.values())
    if total <= together:
        return {name: seconds * together / total for name, seconds in alone.items()}
    low, high = 0.0, max(alone.values())
    for _ in range(60):
        middle = (low + high) / 2
        left = sum(max(seconds - middle, SMALLEST_S) for seconds in alone.values())
        low, high = (middle, high) if left > together else (low, middle)
    return {name: max(seconds - high, SMALLEST_S) for name, seconds in alone.items()}


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
