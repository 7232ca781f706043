"""How much of a backward can be put off: a window's backward in two parts, each timed.

collect: gradients of inputs, every deferrable call ──► queue      input part
run:     each call's weight gradient, timed on its own             weight part
"""

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
from netsplit.profile.measure.clock import Clock, Lap

__all__ = ["SplitBackward"]

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
        """Of every deferrable node the part of its `backward` that can be put off.

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
        """Of every deferrable node, as measured; a view's weight is known by its parameter too."""
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
