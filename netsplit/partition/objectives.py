"""What a problem may minimise, beside `Latency`: the simulated iteration and the period of a pipeline."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from netsplit.partition.base import Latency, Loads, Objective, Problem
from netsplit.partition.common.instance import Floats, Instance
from netsplit.placement.placement import Placement
from netsplit.settings import ObjectiveName

__all__ = ["MaxLoad", "Period", "SimulatedIteration", "objective_named"]


@dataclass(frozen=True)
class SimulatedIteration(Objective):
    """The simulated iteration of the chosen schedule with its micro-batches."""

    name = "simulated"
    scheduled = True


@dataclass(frozen=True)
class Period(Objective):
    """The period of a saturated pipeline: what its slowest device takes for a micro-batch."""

    contiguous: bool = False

    over_ports = True
    says = "the largest load is"
    column = "load"

    @property
    def name(self) -> str:
        return "max_load_contiguous" if self.contiguous else "max_load"

    @abstractmethod
    def loads(self, problem: Problem, placement: Placement) -> Loads: ...

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        return lambda placement: self.loads(problem, placement).period_s

    def relaxed(self) -> Period:
        return replace(self, contiguous=False)


@dataclass(frozen=True)
class MaxLoad(Period):
    """The largest load of a device with its transfers (Tarnawski et al., NeurIPS 2020)."""

    bound_key = "max_load"
    both_ends_pay = True

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        instance = Instance.of(problem)
        return lambda placement: float(instance.loads(instance.encode(placement.device_of)).max(initial=0.0))

    def loads(self, problem: Problem, placement: Placement) -> Loads:
        instance = Instance.of(problem)
        where = instance.encode(placement.device_of)
        rows, devices = np.arange(instance.n), len(instance.devices)
        sent, received = instance.crossings(where)

        def at_home(seconds: Floats) -> Floats:
            return np.asarray(np.bincount(where, weights=seconds[rows, where], minlength=devices), float)

        return Loads(
            seconds=instance.loads(where),
            forward_s=at_home(instance.forward_s),
            backward_s=at_home(instance.backward_s),
            send_s=np.asarray((instance.hop_s * sent).sum(axis=0)),
            receive_s=np.asarray((instance.hop_s * received).sum(axis=0)),
        )


def objective_named(name: ObjectiveName, period: Period) -> Objective:
    """The objective that the command line calls so, where `period` is what has loads or stages."""
    named: dict[ObjectiveName, Objective] = {
        "latency": Latency(),
        "simulated": SimulatedIteration(),
        "max_load": period,
        "max_load_contiguous": replace(period, contiguous=True),
    }
    return named[name]
