"""Devices on which parts take other seconds than is estimated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from netsplit.graph.ir import Graph
from netsplit.partition import Problem
from netsplit.profile.costs import Costs, PartCosts
from netsplit.profile.operator_keys import new_nodes, operator_key
from netsplit.rewrite import rewritten_costs
from netsplit.rewrite.records import Rewrite

__all__ = ["SlowParts"]


@dataclass(eq=False)
class SlowParts:
    """A `PartsMeter`: parts take so many times what is estimated of them, by the rewrites that make them."""

    before: Graph
    whole: Costs
    times: Callable[[tuple[Rewrite, ...]], float]
    spent_s: float = 0.0
    costs: Costs = field(init=False)
    asked: list[tuple[Rewrite, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.costs = self.whole

    @classmethod
    def on(cls, problem: Problem, times: Callable[[tuple[Rewrite, ...]], float]) -> tuple[SlowParts, Problem]:
        """And the problem, with it."""
        meter = cls(problem.graph, problem.costs, times)
        return meter, replace(problem, meter=meter)

    def measured(self, graph: Graph) -> Costs:
        if graph.rewrites in self.asked:
            return self.costs
        self.asked.append(graph.rewrites)
        estimated = rewritten_costs(self.whole, self.before, graph)
        devices = {}
        for kind, own in self.costs.devices.items():
            parts = dict(own.parts)
            for name in new_nodes(self.before, graph):
                seconds = estimated.devices[kind].nodes[name].scaled(1.0 / self.times(graph.rewrites))
                parts.setdefault(operator_key(graph, graph.nodes[name]), PartCosts(seconds))
            devices[kind] = replace(own, parts=parts)
        self.costs = replace(self.costs, devices=devices)
        return self.costs
