"""What a problem may minimise, beside `Latency`: the simulated iteration and the period of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from netsplit.partition.base import Answer, Latency, Loads, Objective, Placement, Problem, Solvers
from netsplit.partition.common.instance import Floats, Instance, Ints

__all__ = ["MaxLoad", "ObjectiveName", "SimulatedIteration", "load_parts", "objective_named"]

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

    def loads(self, problem: Problem, placement: Placement) -> Loads:
        instance = Instance.of(problem)
        where = instance.encode(placement.device_of)
        parts = load_parts(instance, where)
        sends, receives = parts["sends"], parts["receives"]
        return Loads(instance.loads(where), sends + receives, sends, receives)

    def solved_by(self, solvers: Solvers[Answer]) -> Answer:
        return solvers.max_load(self.contiguous)

    def relaxed(self) -> MaxLoad:
        return replace(self, contiguous=False)


def load_parts(instance: Instance, where: Ints) -> dict[str, Floats]:
    """[D] seconds each of "forward", "backward", "sends", "receives": together `Instance.loads`."""
    rows, devices = np.arange(instance.n), len(instance.devices)
    read = np.zeros((len(instance.variables), devices), bool)
    counts = np.diff(instance.consumers.starts)
    read[np.repeat(np.arange(len(read)), counts), where[instance.consumers.items]] = True
    home = np.zeros_like(read)
    home[np.arange(len(read)), where[instance.producer]] = True
    sent = home & np.any(read & ~home, axis=1, keepdims=True)

    def at_home(seconds: Floats) -> Floats:
        return np.asarray(np.bincount(where, weights=seconds[rows, where], minlength=devices), float)

    return {
        "forward": at_home(instance.forward_s),
        "backward": at_home(instance.backward_s),
        "sends": np.asarray((instance.hop_s * sent).sum(axis=0)),
        "receives": np.asarray((instance.hop_s * (read & ~home)).sum(axis=0)),
    }


def objective_named(name: ObjectiveName, max_load: MaxLoad) -> Objective:
    """The objective that the command line calls so, where `max_load` is what has loads or stages."""
    named: dict[ObjectiveName, Objective] = {
        "latency": Latency(),
        "simulated": SimulatedIteration(),
        "max_load": max_load,
        "max_load_contiguous": replace(max_load, contiguous=True),
    }
    return named[name]
