"""What every method is given (`Problem`, with its `Objective`) and what comes of it (`Placement`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from netsplit import rewrite
from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.placement.placement import BOUND_FOR, Placement, SolverReport, Stage
from netsplit.profile.costs import Costs
from netsplit.profile.memory import MemoryModel, lifetimes_model, static_model
from netsplit.rewrite.records import Rewrite

if TYPE_CHECKING:  # the simulator loads torch
    from netsplit.simulate.simulator import Simulator

__all__ = [
    "Latency",
    "Loads",
    "MemoryRule",
    "Objective",
    "PartsMeter",
    "Problem",
]

MemoryRule = Literal["static", "lifetimes"]


class PartsMeter(Protocol):
    """Measures what operators in parts take, which else is estimated. It is handed in: it takes devices."""

    @property
    def spent_s(self) -> float:
        """Seconds that measuring has taken so far."""

    def measured(self, graph: Graph) -> Costs:
        """Costs of the whole operators, with all that is known of parts, a rewritten graph's among them.

        Raises:
            ConfigError: these parts are none to be trained.
        """


@dataclass(frozen=True, eq=False)
class Loads:
    """[D] seconds of each device in one period: the largest of `seconds` is the score."""

    seconds: NDArray[np.float64]
    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    send_s: NDArray[np.float64]
    receive_s: NDArray[np.float64]
    beside: bool = False  # transfers go on beside the computing; else `seconds` is the sum of the others
    stages: tuple[Stage, ...] = ()  # whose replicas the seconds are of; else every device is alone

    @property
    def period_s(self) -> float:
        return float(self.seconds.max(initial=0.0))

    @property
    def parts(self) -> dict[str, NDArray[np.float64]]:
        return {
            "forward": self.forward_s,
            "backward": self.backward_s,
            "sends": self.send_s,
            "receives": self.receive_s,
        }

    @property
    def transfer_s(self) -> NDArray[np.float64]:
        return np.maximum(self.send_s, self.receive_s) if self.beside else self.send_s + self.receive_s


class Objective(ABC):
    """What is minimised, in seconds: by default the iteration that `Problem.simulator` predicts.

    `Latency` is here as the default; the others are in `objectives` and `stage_time`.
    """

    bound_key: str = ""  # what `BOUND_FOR` says of a bound that holds for it; "": no method proves one
    scheduled: bool = False  # of all micro-batches, as the chosen schedule has them; else of one alone
    contiguous: bool = False  # devices are stages of a pipeline, none of which waits in a circle
    both_ends_pay: bool = False  # `Instance.hop_s` each for what moves; else the link is occupied
    says: str = "an iteration takes"  # what people read before the seconds
    column: str = "busy"  # and above those of the devices

    @property
    @abstractmethod
    def name(self) -> str:
        """The name on the command line."""

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        """What gives the seconds of a placement; None where the problem lacks a `simulator`."""
        simulator = problem.simulator
        return None if simulator is None else lambda placement: simulator(placement).iteration_s

    def loads(self, problem: Problem, placement: Placement) -> Loads | None:
        """What its devices do in a period, whose seconds are the score; None: it is simulated."""
        return None

    def score_s(self, problem: Problem, placement: Placement) -> float:
        """Seconds of a placement, however it was made."""
        score = self.scorer(problem)
        assert score is not None, "the problem has no `simulator`"
        return score(placement)

    def bound_s(self, report: SolverReport) -> float | None:
        """The report's bound, where it holds for this objective."""
        return report.bound if self.bound_key and report.notes.get(BOUND_FOR) == self.bound_key else None

    def relaxed(self) -> Objective:
        """The same without contiguity."""
        return self


@dataclass(frozen=True)
class Latency(Objective):
    """One training step of one micro-batch, as the simulator has it under ``single_batch``."""

    name = bound_key = "latency"


@dataclass(frozen=True)
class Problem:
    """One placement problem: the graph, what its nodes cost, and the devices to choose from."""

    graph: Graph
    costs: Costs
    cluster: Cluster
    in_flight: int = 1  # micro-batches whose variables are alive at once under the schedule
    seed: int = 0
    simulator: Simulator | None = None
    """Under the schedule that the objective has, with the capacities that there are."""

    objective: Objective = Latency()
    time_limit_s: float | None = None  # of the whole decision; None: the method's own default
    backward_nodes: frozenset[str] = frozenset()
    """Nodes of a task graph that are backward computations of their own: they have forward seconds only.
    Contiguity is asked of them and of the other nodes separately. Empty for captured graphs."""

    improved: Callable[[float, str], object] | None = None  # told seconds and source of a better answer
    known: Placement | None = None  # one that fits, from which a search may begin, of any rewrites
    memory: MemoryRule = "static"
    """What the methods count: (5-18), or what is near the lifetimes that `simulator` predicts."""
    meter: PartsMeter | None = None
    """Measures what parts take; None: that is predicted or estimated."""

    def moved_to(self, cluster: Cluster, costs: Costs) -> Problem:
        """The same problem on another cluster with other costs, its `simulator` included."""
        simulator = None if self.simulator is None else self.simulator.moved_to(cluster, costs)
        meter = self.meter if costs is self.costs else None
        return replace(self, cluster=cluster, costs=costs, simulator=simulator, meter=meter)

    def with_measured_parts(self, rewrites: Sequence[Rewrite]) -> Problem:
        """With what the parts take that these rewrites make, measured where that is done; itself, where
        nothing more is known then. Raises as `rewritten` and `PartsMeter.measured`."""
        if self.meter is None or not rewrites:
            return self
        costs = self.meter.measured(rewrite.applied(self.graph, rewrites, scaled=True))
        if costs is self.costs:
            return self
        simulator = self.simulator
        if simulator is not None:
            simulator = simulator.moved_to(simulator.cluster, costs)
        return replace(self, costs=costs, simulator=simulator)

    def metered_s(self) -> float:
        """Seconds that measuring parts has taken so far."""
        return 0.0 if self.meter is None else self.meter.spent_s

    def rewritten(self, rewrites: Sequence[Rewrite]) -> Problem:
        """The problem of placing the rewritten graph; itself, where that has been done.

        Raises:
            RewriteError: the graph cannot be rewritten so.
        """
        graph = rewrite.applied(self.graph, rewrites, scaled=True)
        if graph is self.graph:
            return self
        simulator = None if self.simulator is None else self.simulator.rewritten(rewrites)
        costs = rewrite.rewritten_costs(self.costs, self.graph, graph)
        return replace(self, graph=graph, costs=costs, simulator=simulator, meter=None)

    @property
    def the_simulator(self) -> Simulator:
        """The simulator of a problem that is simulated."""
        assert self.simulator is not None, "the problem has no simulator"
        return self.simulator

    @property
    def copies(self) -> int:
        """How often a variable's bytes count in (5-18)."""
        return self.costs.copies(self.in_flight)

    @cached_property
    def memory_model(self) -> MemoryModel:
        """The linear count of bytes by `memory`."""
        if self.memory == "static":
            return static_model(self.graph, self.costs.alpha, self.copies)
        # What is offloaded comes back for one micro-batch at a time.
        in_flight = 1 if self.costs.offload.activations else self.in_flight
        return lifetimes_model(self.graph, self.costs.device_alpha, in_flight)
