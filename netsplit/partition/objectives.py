"""What a problem may minimise, beside `Latency`: the simulated iteration and the period of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from netsplit.partition.base import Answer, Latency, Objective, Placement, Problem, Solvers
from netsplit.partition.common.instance import Instance

__all__ = ["MaxLoad", "ObjectiveName", "SimulatedIteration", "objective_named"]

ObjectiveName = Literal["latency", "max_load", "max_load_contiguous", "simulated"]


@dataclass(frozen=True)
class SimulatedIteration(Latency):
    """The simulated iteration of the chosen schedule with its micro-batches."""

    name = "simulated"
    bound_key = ""
    scheduled = True

    def solved_by(self, solvers: Solvers[Answer]) -> Answer:
        return solvers.iteration()


@dataclass(frozen=True)
class MaxLoad(Objective):
    """The period of a saturated pipeline: the largest load of a device with its transfers."""

    contiguous: bool = False

    bound_key = "max_load"
    simulated = False
    largest_load = True
    says = "the largest load is"

    @property
    def name(self) -> str:
        return "max_load_contiguous" if self.contiguous else "max_load"

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        instance = Instance.of(problem)
        return lambda placement: float(instance.loads(instance.encode(placement.device_of)).max(initial=0.0))

    def solved_by(self, solvers: Solvers[Answer]) -> Answer:
        return solvers.max_load(self.contiguous)

    def relaxed(self) -> MaxLoad:
        return replace(self, contiguous=False)


def objective_named(name: ObjectiveName, max_load: MaxLoad) -> Objective:
    """The objective that the command line calls so, where `max_load` is what has loads or stages."""
    named: dict[ObjectiveName, Objective] = {
        "latency": Latency(),
        "simulated": SimulatedIteration(),
        "max_load": max_load,
        "max_load_contiguous": replace(max_load, contiguous=True),
    }
    return named[name]
