"""What every method is given (`Problem`), what it answers (`Placement`), and its abstract class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs

__all__ = ["Objective", "Partitioner", "Placement", "Problem", "SolverReport", "Stage", "Status"]

Status = Literal["optimal", "feasible", "infeasible", "limit", "heuristic"]

Objective = Literal["latency", "max_load", "simulated"]
"""What is minimised, in seconds.

- ``latency``: one training step of one micro-batch, as the simulator has it under ``single_batch``;
- ``max_load``: the period of a saturated pipeline, the largest load of a device with its transfers;
- ``simulated``: the simulated iteration of the chosen schedule with its micro-batches.
"""


@dataclass(frozen=True)
class Problem:
    """One placement problem: the graph, what its nodes cost, and the devices to choose from."""

    graph: Graph
    costs: Costs
    cluster: Cluster
    in_flight: int = 1  # micro-batches whose variables are alive at once under the schedule
    seed: int = 0
    evaluate: Callable[[Placement], Any] | None = None  # simulated Timeline under the chosen schedule
    objective: Objective = "latency"
    contiguous: bool = False  # max_load: devices as stages of a pipeline, none of which waits in a circle
    time_limit_s: float | None = None  # of the whole decision; None: the method's own default
    backward_nodes: frozenset[str] = frozenset()
    """Nodes of a task graph that are backward computations of their own: they have forward seconds only.
    Contiguity is asked of them and of the other nodes separately. Empty for captured graphs."""
    stage_time: bool = False
    """`max_load` is PipeDream's: stages with replicas, weight synchronisation, transfers beside compute."""

    @property
    def copies(self) -> int:
        """How often a variable's bytes count in (5-18)."""
        return self.costs.copies(self.in_flight)


@dataclass(frozen=True)
class SolverReport:
    """How an answer came about. Seconds throughout; `objective`, `bound`, `gap` only where one exists."""

    status: Status
    seconds: float
    engine: str = ""  # "gurobi 13.0.3", "highs 1.15.1", "" for a heuristic
    objective: float | None = None
    bound: float | None = None
    gap: float | None = None  # (objective - bound) / objective
    notes: dict[str, Any] = field(default_factory=dict)  # numbers worth recording: groups, variables

    def summary(self) -> str:
        parts: list[str] = [self.status]
        if self.engine:
            parts.append(f"by {self.engine}")
        if self.objective is not None:
            parts.append(f"objective {self.objective:.6g} s")
        if self.bound is not None:
            parts.append(f"bound {self.bound:.6g} s")
        if self.gap is not None:
            parts.append(f"gap {100 * self.gap:.2f} %")
        parts.append(f"in {self.seconds:.2f} s")
        return ", ".join(parts)


@dataclass(frozen=True)
class Stage:
    """A set of nodes that several devices run as data-parallel replicas, or one device alone."""

    nodes: tuple[str, ...]
    devices: tuple[str, ...]  # the first is `device_of` of the nodes
    warm_up: int = 0  # forwards a replica runs before its first backward


@dataclass(frozen=True)
class Placement:
    """Every node on exactly one device, and a total order which the program enforces."""

    method: str
    device_of: dict[str, str]  # node name -> device name
    priority: dict[str, int]  # node name -> rank; a topological order of the graph
    report: SolverReport
    stages: tuple[Stage, ...] = ()  # of a method that replicates; in pipeline order

    @property
    def replicas(self) -> dict[str, tuple[str, ...]]:
        """First device of each replicated stage -> all of its devices."""
        return {each.devices[0]: each.devices for each in self.stages if len(each.devices) > 1}


class Partitioner(ABC):
    """A method that decides a placement. Subclasses are small dataclasses of their parameters."""

    name: str = ""
    respects_capacity: bool = True
    optimises: str = ""  # what the method itself minimises, in a few words

    @abstractmethod
    def partition(self, problem: Problem) -> Placement:
        """Decide.

        Raises:
            InfeasibleError: no placement fits; the message says how many bytes are missing where.
        """
