"""`pipedream`: contiguous stages with replicas whose slowest one is the fastest (PipeDream's planner).

Sources: PipeDream (Narayanan et al., SOSP 2019, section 3.1); the released optimiser (github
msr-fiddle/pipedream, optimizer/optimizer_graph_hierarchical.py) and runtime (runtime/runtime.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import fill_in_order, infeasible
from netsplit.partition.common.layers import Layers
from netsplit.partition.methods.pipedream.antichains import antichain_states
from netsplit.partition.methods.pipedream.stage_plans import (
    plan_that_fits,
    staged,
    stages_of,
)
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.partition.stage_time import Cost, Formula, levels_of

__all__ = ["PipeDream"]


@dataclass(frozen=True)
class PipeDream(Partitioner):
    """Cut the states of the antichain DAG into stages, and give every stage a number of replicas.

    The report's objective is the programme's own value: seconds of the slowest stage or transfer per
    micro-batch (`stage_plans`). Its notes: replicas and warm-up of each stage, the number of states, and
    how blocks were merged where there were more than `max_states`.

    Kept from the released code: the costs, at each level; inputs cost nothing and are in the first stage;
    devices are alike (the slowest kind's seconds) and links have one bandwidth per level, no latency.
    Added: colocated sets, with what lies between their nodes, are never cut; the backward nodes of a
    task graph follow their colour class; and a plan that exceeds a capacity under (5-18), on any replica,
    is replaced by the best that does not, or where there is none by the fill in topological order.
    """

    cost: Cost = "released"
    count_transfers: bool = True  # the released code's --activation_compression_ratio 1
    straight: bool = False  # no replication
    use_fewer_machines: bool = False
    memory_constraint: bool = False  # the released check of stashed bytes against the least capacity
    max_states: int = 1500

    name = "pipedream"
    optimises = "the slowest stage of a pipeline with replicated stages"

    def __post_init__(self) -> None:
        self.require_choice("cost", Cost)
        self.require("max_states", self.max_states >= 1, "1 or more")

    def choose(self, problem: Problem) -> Choice:
        layers = Layers.of(problem)
        if not layers.n:
            return self._filled(problem)
        formula = Formula(levels_of(problem), self.cost, self.count_transfers)
        # All levels but the last take time with the cube of the states.
        limit = self.max_states if len(formula.levels) == 1 else min(self.max_states, 400)
        states = antichain_states(layers, limit)
        least = float(min(device.capacity_bytes for device in problem.cluster.devices))
        value, spans = plan_that_fits(
            problem,
            states,
            formula,
            straight=self.straight,
            fewer=self.use_fewer_machines,
            memory_bytes=least if self.memory_constraint else None,
        )
        if not spans:
            return self._filled(problem)
        stages = stages_of(problem, states, spans)
        notes: dict[str, Any] = {
            "replication": [len(stage.devices) for stage in stages],
            "warm_up": [stage.warm_up for stage in stages],
            "states": len(states),
            "reduction": states.reduction,
        }
        return Choice(*staged(problem, stages), objective_s=value, notes=notes, stages=stages)

    def _filled(self, problem: Problem) -> Choice:
        """No stages at all: nothing but inputs, or no cut of the states fits."""
        device_of = fill_in_order(problem, [device.capacity_bytes for device in problem.cluster.devices])
        if device_of is None:
            raise infeasible(problem, self.name)
        return Choice(device_of, notes={"fallback": "fill in order"})
