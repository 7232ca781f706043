"""Consecutive nodes of a graph, run one by one and, for comparison, as one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.deferral.deferred import Edge, WeightGradients
from netsplit.graph.ir import Graph, Node
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.measure.bench import NodeBench
from netsplit.profile.measure.clock import Clock, Lap
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.stretches.stretch import Stretch

__all__ = ["Window", "adjusted_to_sum"]

AT_MOST = 0.95  # of a node's backward: its input part is never nothing


@dataclass
class SplitBackward:
    """Laps of a window's two parts of a backward, and of each parameter's gradient in the second."""

    clock: Clock
    owner: dict[str, list[str]]  # parameter -> deferrable nodes that use it
    nodes: frozenset[str]  # deferrable
    module: nn.Module = field(default_factory=nn.Module)
    parts: list[tuple[Lap, Lap]] = field(default_factory=list)
    own: dict[str, list[Lap]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, nodes: list[Node], clock: Clock) -> Self | None:
        """None where nothing can be put off."""
        names = deferrable_nodes(graph, [node.name for node in nodes])
        owner: dict[str, list[str]] = {}
        for node in nodes:
            if node.name in names:
                for k in node.initializers:
                    owner.setdefault(k, []).append(node.name)
        return cls(clock, owner, names) if names else None

    def run(self, ends: list[Tensor], names: Mapping[int, str]) -> None:
        """Backward in two parts from `ends`; `names` of the parameters by their id."""
        if not ends:
            return
        queue = _TimedGradients(self.clock, names)
        seeds = [torch.empty_like(t).uniform_(-1.0, 1.0) for t in ends]
        start = self.clock.now()
        with queue.collect():
            torch.autograd.backward(ends, seeds)
        middle = self.clock.now()
        queue.run()
        self.parts.append(((start, middle), (middle, self.clock.now())))
        for name, lap in queue.laps:
            self.own.setdefault(name, []).append(lap)

    def weight_seconds(self, timed: list[int], backward: Mapping[str, float]) -> dict[str, float]:
        """Seconds of every deferrable node's `backward` that can be put off.

        The window's fraction of the weight part is spread over its nodes as their own gradients took.
        """
        if not self.parts:
            return {}
        chosen = [self.parts[walk] for walk in timed]
        first, second = (median(self.clock.seconds([pair[i] for pair in chosen])) for i in (0, 1))
        fraction = second / max(first + second, 1e-12)
        wanted = fraction * sum(backward.values())
        own = self._own_seconds()
        bounds = {name: AT_MOST * backward[name] for name in own if name in backward}
        return _spread(wanted, {name: own[name] for name in bounds}, bounds)

    def _own_seconds(self) -> dict[str, float]:
        """Measured seconds of every deferrable node; a view's weight is known by its parameter too."""
        seconds: dict[str, float] = {}
        for parameter, laps in self.own.items():
            users = [name for name in self.owner.get(parameter, ()) if name in self.nodes]
            for name in users:
                seconds[name] = seconds.get(name, 0.0) + median(self.clock.seconds(laps)) / len(users)
        return seconds


class _TimedGradients(WeightGradients):
    """A queue that notes how long each parameter's gradient takes."""

    def __init__(self, clock: Clock, names: Mapping[int, str]) -> None:
        super().__init__()
        self.clock = clock
        self.names = names
        self.laps: list[tuple[str, Lap]] = []

    def put(
        self,
        edges: Sequence[Edge],
        compute: Callable[..., Tensor | Sequence[Tensor | None]],
        held: tuple[Tensor, ...],
    ) -> None:
        name = self.names.get(id(_leaf_of(edges[0][0])), "")

        def timed(*given: Tensor) -> Tensor | Sequence[Tensor | None]:
            start = self.clock.now()
            gradients = compute(*given)
            self.laps.append((name, (start, self.clock.now())))
            return gradients

        super().put(edges, timed, held)


def _leaf_of(function: Any) -> Any:
    """The leaf at the end of a chain of views and casts."""
    while function is not None and not hasattr(function, "variable"):
        function = function.next_functions[0][0] if function.next_functions else None
    return None if function is None else function.variable


def _spread(total: float, like: Mapping[str, float], bounds: Mapping[str, float]) -> dict[str, float]:
    """`total` shared out in proportion to `like`, none above its bound."""
    parts = dict.fromkeys(like, 0.0)
    open_, left = set(like), total
    while open_ and left > 0:
        weight = sum(like[name] for name in open_)
        if weight <= 0:
            break
        full = {name for name in open_ if left * like[name] / weight >= bounds[name]}
        for name in full or open_:
            parts[name] = bounds[name] if full else left * like[name] / weight
        if not full:
            break
        left -= sum(bounds[name] for name in full)
        open_ -= full
    return parts


SMALLEST_S = 1e-7  # no operator and no backward of one is cheaper than this


class Window:
    """Runs its nodes alone, all forward and then all backward, and as one piece."""

    def __init__(
        self,
        graph: Graph,
        benches: list[NodeBench],
        values: Mapping[str, Tensor],
        clock: Clock,
        in_flight: int = 1,
    ) -> None:
        self.benches = benches
        self.clock = clock
        self.in_flight = in_flight
        nodes = [bench.node for bench in benches]
        self.stretch = Stretch(graph, [node.name for node in nodes], values, clock, in_flight)
        self.split = SplitBackward.of(graph, nodes, clock)
        if self.split is not None:
            self.split.module = self.stretch.module(deferrable=True)

    def run(self, live: LiveValues) -> None:
        """Once together, once with the backward in two parts, and once one by one."""
        stretch = self.stretch
        inputs, tensors = stretch.copies(live)
        stretch.run(inputs, tensors)
        if self.split is not None:
            results = stretch.results(_Plain(self.split.module), inputs, tensors)
            names = {id(t): k for k, t in zip(stretch.initializers, tensors.values(), strict=True)}
            self.split.run(stretch.ends(results), names)
            del results
        contexts = [bench.run_forward(live) for bench in self.benches]
        gradients: dict[str, Tensor] = {}
        for bench in reversed(self.benches):
            bench.run_backward(contexts.pop(), gradients)

    def seconds(self, timed: list[int], engine_call_s: float) -> dict[str, NodeSeconds]:
        """Seconds of each node: its median alone, scaled so that the nodes add up to the whole window."""
        forward = {b.node.name: self._median(b.forward, timed) for b in self.benches}
        backward = {b.node.name: self._median(b.backward, timed) for b in self.benches if b.backward}
        forward = adjusted_to_sum(forward, self._together(self.stretch.forward, timed))
        weights: dict[str, float] = {}
        if backward:
            backward = adjusted_to_sum(backward, self._together(self.stretch.backward, timed) - engine_call_s)
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


class _Plain(nn.Module):
    """A module under the name that the window's tensors have."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module.forward(*inputs)


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
