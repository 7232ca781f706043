"""Consecutive nodes of a graph, run one by one and, for comparison, as one piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.deferral.deferred import WeightGradients
from netsplit.graph.ir import Graph
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.measure.bench import NodeBench
from netsplit.profile.measure.clock import Clock, Lap
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.stretches.stretch import Stretch, Timed

__all__ = ["Window", "adjusted_to_sum"]

AT_MOST = 0.95  # of a node's backward: its input part is never nothing


@dataclass
class SplitBackward:
    """Laps of a window's two parts of a backward."""

    clock: Clock
    nodes: frozenset[str]  # deferrable
    module: nn.Module
    parts: list[tuple[Lap, Lap]] = field(default_factory=list)

    def run(self, ends: list[Tensor]) -> None:
        """Backward in two parts from `ends`."""
        if not ends:
            return
        queue = WeightGradients()
        seeds = [torch.empty_like(t).uniform_(-1.0, 1.0) for t in ends]
        start = self.clock.now()
        with queue.collect():
            torch.autograd.backward(ends, seeds)
        middle = self.clock.now()
        queue.run()
        self.parts.append(((start, middle), (middle, self.clock.now())))

    def weight_seconds(self, timed: list[int], backward: Mapping[str, float]) -> dict[str, float]:
        """Of every deferrable node the part of its `backward` that can be put off.

        The window's fraction of the weight part is spread over its nodes as their backwards took.
        """
        if not self.parts:
            return {}
        chosen = [self.parts[walk] for walk in timed]
        first, second = (median(self.clock.seconds([pair[i] for pair in chosen])) for i in (0, 1))
        wanted = second / max(first + second, 1e-12) * sum(backward.values())
        own = {name: backward[name] for name in self.nodes if name in backward}
        part = min(wanted / max(sum(own.values()), 1e-12), AT_MOST)
        return {name: part * seconds for name, seconds in own.items()}


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
        names = deferrable_nodes(graph, [node.name for node in nodes])
        deferring = self.stretch.module(deferrable=True) if names else None
        self.split = None if deferring is None else SplitBackward(clock, names, deferring)

    def run(self, live: LiveValues) -> None:
        """Once together, once with the backward in two parts, and once one by one."""
        stretch = self.stretch
        inputs, tensors = stretch.copies(live)
        stretch.run(inputs, tensors)
        if self.split is not None:
            results = stretch.results(Timed(self.split.module, self.clock), inputs, tensors)
            self.split.run(stretch.ends(results))
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
