"""What every method is given (`Problem`, with its `Objective`) and what comes of it (`Placement`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from netsplit import rewrite
from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.partition.exchange import Exchange
from netsplit.profile.costs import Costs
from netsplit.profile.memory import MemoryModel, lifetimes_model, static_model
from netsplit.rewrite.records import Rewrite

__all__ = [
    "BOUND_FOR",
    "ONE_BATCH",
    "TOLD",
    "Evaluate",
    "Latency",
    "Loads",
    "MemoryRule",
    "Objective",
    "PartsMeter",
    "Placement",
    "Predicted",
    "Problem",
    "ScheduleName",
    "Scored",
    "Shard",
    "ShardName",
    "SolverReport",
    "Solvers",
    "Stage",
    "Status",
    "Turns",
    "device_in_turn",
]

Status = Literal["optimal", "feasible", "infeasible", "limit", "heuristic"]

MemoryRule = Literal["static", "lifetimes"]

ScheduleName = Literal["single_batch", "gpipe", "1f1b", "eager_1f1b"]

BOUND_FOR = "bound_for"
"""Key of `SolverReport.notes`: the `Objective.bound_key` that the report's bound was proven for."""

TOLD = "told"
"""Key of `SolverReport.notes`: what a summary says beside all else."""

ShardName = Literal["optimizer", "gradients", "parameters"]

Answer = TypeVar("Answer", covariant=True)


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
    optimises: str = ""  # what the method minimises, in a few words; "optimal" is said of that

    def summary(self) -> str:
        of_what = f" for its own objective ({self.optimises})" if self.optimises else ""
        parts: list[str] = [f"{self.status}{of_what * (self.status == 'optimal')}"]
        if self.objective is not None:
            parts.append(f"objective {1e3 * self.objective:,.1f} ms")
        if self.bound is not None and self.status != "optimal":
            parts.append(f"bound {1e3 * self.bound:,.1f} ms")
        if self.gap is not None:
            parts.append(f"gap {100 * self.gap:.2f} %")
        parts.append(f"decided in {self.seconds:.2f} s{f' by {self.engine}' if self.engine else ''}")
        if TOLD in self.notes:
            parts.append(str(self.notes[TOLD]))
        return ", ".join(parts)


@dataclass(frozen=True)
class Stage:
    """A set of nodes that several devices run as data-parallel replicas, or one device alone.

    `turns` says which replica takes which micro-batch, as places in `devices` that come again and again;
    empty: one after the other. It has every place, or a device would have nothing to do.
    """

    nodes: tuple[str, ...]
    devices: tuple[str, ...]  # the first is `device_of` of the nodes
    warm_up: int = 0  # forwards a replica runs before its first backward
    turns: tuple[int, ...] = ()

    @property
    def in_turn(self) -> tuple[str, ...]:
        """Devices by their turns: what `device_in_turn` reads."""
        return tuple(self.devices[place] for place in self.turns) or self.devices

    @property
    def parts(self) -> dict[str, float]:
        """Device -> fraction of the micro-batches that it takes."""
        count = Counter(self.in_turn)
        return {name: count[name] / count.total() for name in self.devices}


@dataclass(frozen=True)
class Shard:
    """How devices that hold the same parameters, replicas of a stage or of operators, keep their states.

    `level`: "optimizer" keeps the optimiser's moments in slices, a slice on each device; "gradients" sums
    gradients into the slices as soon as they are complete; "parameters" keeps nothing else of the parameters.
    `cuts`: nodes at which a segment begins, so that little is whole at once.
    """

    devices: tuple[str, ...]
    level: ShardName
    cuts: tuple[str, ...] = ()


def device_in_turn(turns: Sequence[str], i: int) -> str:
    """Whose turn micro-batch i is: the one rule by which replicas share micro-batches."""
    return turns[i % len(turns)]


@dataclass(frozen=True)
class Placement:
    """Every node on exactly one device, and a total order which the program enforces."""

    method: str
    device_of: dict[str, str]  # node name -> device name
    priority: dict[str, int]  # node name -> rank; a topological order of the graph
    report: SolverReport
    stages: tuple[Stage, ...] = ()  # of a method that replicates; in the order in which they begin
    cuts: tuple[str, ...] = ()  # nodes at which a segment begins, though their device goes on
    recomputed: frozenset[str] = frozenset()
    """Nodes whose activations are not kept from forward to backward, but computed again before it."""
    rewrites: tuple[Rewrite, ...] = ()
    """What is done to the problem's graph first: all nodes here are those of the graph that comes of it."""
    exchanges: tuple[Exchange, ...] = ()
    """How variables travel; of the others the home sends each to every device that reads it."""
    shards: tuple[Shard, ...] = ()
    """Devices whose states are in slices; of the others each has all that belongs to its parameters."""

    def to_dict(self) -> dict[str, Any]:
        """For a file of JSON."""
        rewrites = [each.to_dict() for each in self.rewrites]
        exchanges = [each.to_dict() for each in self.exchanges]
        own = {"recomputed": sorted(self.recomputed), "rewrites": rewrites, "exchanges": exchanges}
        return asdict(self) | own

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """Its stages; of a method that has none, one for each device that has nodes."""
        nodes: dict[str, list[str]] = {}
        for name, device in self.device_of.items():
            nodes.setdefault(device, []).append(name)
        return self.stages or tuple(Stage(tuple(own), (device,)) for device, own in nodes.items())

    @property
    def replicas(self) -> dict[str, tuple[str, ...]]:
        """First device of each replicated stage -> all of its devices."""
        return {each.devices[0]: each.devices for each in self.stages if len(each.devices) > 1}

    @property
    def replicated(self) -> list[str]:
        """Nodes of the replicated stages."""
        return [name for each in self.stages if len(each.devices) > 1 for name in each.nodes]

    @property
    def turns(self) -> dict[str, tuple[str, ...]]:
        """First device of each replicated stage -> its devices by their turns."""
        return {each.devices[0]: each.in_turn for each in self.stages if len(each.devices) > 1}


class Predicted(Protocol):
    """What is known of a placement before it runs: more than this, where a simulator predicts it."""

    @property
    def iteration_s(self) -> float: ...

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """Device -> largest number of bytes alive at once."""


@dataclass(frozen=True)
class Turns:
    """The order of micro-batches, as compiled steps know it."""

    schedule: ScheduleName = "single_batch"
    microbatches: int = 1
    exact: bool = True  # False: of a schedule that is like it


ONE_BATCH = Turns()


class Scored(Protocol):
    """A placement with its exchanges, and what is predicted of it."""

    @property
    def placement(self) -> Placement: ...

    @property
    def timeline(self) -> Predicted: ...


class Evaluate(Protocol):
    """Predicts the iteration of a placement. It is handed in, as simulating comes after partitioning."""

    @property
    def cluster(self) -> Cluster:
        """With the capacities that there are."""

    @property
    def turns(self) -> Turns:
        """The schedule that it simulates."""

    @property
    def hands_on(self) -> bool:
        """Whether it may have devices hand on what they receive, of which compiled steps do not know."""

    def __call__(self, placement: Placement) -> Predicted: ...

    def scored(self, placement: Placement) -> Scored:
        """With what devices hand on: what a plan of the placement takes."""

    def moved_to(self, cluster: Cluster, costs: Costs) -> Evaluate:
        """The same on another cluster with other costs."""

    def rewritten(self, rewrites: Sequence[Rewrite]) -> Evaluate:
        """Of the graph after these rewrites; raises as `applied`."""


class PartsMeter(Protocol):
    """Measures what operators in parts take, which else is estimated. It is handed in: it takes devices."""

    @property
    def spent_s(self) -> float:
        """Seconds that measuring has taken so far."""

    def measured(self, graph: Graph) -> Costs:
        """Of the whole operators, with all that is known of parts, those of a rewritten graph among them.

        Raises:
            ConfigError: these parts are none to be trained.
        """


class Solvers(Protocol[Answer]):
    """One solver per objective; `Objective.solved_by` calls its own."""

    def latency(self) -> Answer: ...

    def iteration(self) -> Answer: ...

    def max_load(self, contiguous: bool) -> Answer: ...

    def stage_time(self, contiguous: bool) -> Answer: ...


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
    """What is minimised, in seconds: by default the iteration that `Problem.evaluate` predicts.

    `Latency` is here as the default; the others are in `objectives` and `stage_time`.
    """

    bound_key: str = ""  # what `BOUND_FOR` says of a bound that holds for it; "": no method proves one
    scheduled: bool = False  # of all micro-batches, as the chosen schedule has them; else of one alone
    contiguous: bool = False  # devices are stages of a pipeline, none of which waits in a circle
    both_ends_pay: bool = False  # `Instance.hop_s` each for what moves; else the link is occupied
    over_ports: bool = False  # a device pays for its port to the host, and only without one for its links
    says: str = "an iteration takes"  # what people read before the seconds
    column: str = "busy"  # and above those of the devices

    @property
    @abstractmethod
    def name(self) -> str:
        """As the command line has it."""

    @abstractmethod
    def solved_by(self, solvers: Solvers[Answer]) -> Answer: ...

    def scorer(self, problem: Problem) -> Callable[[Placement], float] | None:
        """What gives the seconds of a placement; None where the problem lacks the `evaluate` for it."""
        evaluate = problem.evaluate
        return None if evaluate is None else lambda placement: evaluate(placement).iteration_s

    def loads(self, problem: Problem, placement: Placement) -> Loads | None:
        """What its devices do in a period, whose seconds are the score; None: it is simulated."""
        return None

    def score_s(self, problem: Problem, placement: Placement) -> float:
        """Seconds of a placement, however it was made."""
        score = self.scorer(problem)
        assert score is not None, "the problem has no `evaluate`"
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

    def solved_by(self, solvers: Solvers[Answer]) -> Answer:
        return solvers.latency()


@dataclass(frozen=True)
class Problem:
    """One placement problem: the graph, what its nodes cost, and the devices to choose from."""

    graph: Graph
    costs: Costs
    cluster: Cluster
    in_flight: int = 1  # micro-batches whose variables are alive at once under the schedule
    seed: int = 0
    evaluate: Evaluate | None = None  # under the schedule that the objective has
    objective: Objective = Latency()
    time_limit_s: float | None = None  # of the whole decision; None: the method's own default
    backward_nodes: frozenset[str] = frozenset()
    """Nodes of a task graph that are backward computations of their own: they have forward seconds only.
    Contiguity is asked of them and of the other nodes separately. Empty for captured graphs."""

    improved: Callable[[float, str], object] | None = None  # told seconds and source of a better answer
    known: Placement | None = None  # one that fits, from which a search may begin, of any rewrites
    memory: MemoryRule = "static"
    """What the methods count: (5-18), or what is near the lifetimes that `evaluate` predicts."""
    meter: PartsMeter | None = None
    """Of the costs at hand; None: what parts take is predicted or estimated."""

    def moved_to(self, cluster: Cluster, costs: Costs) -> Problem:
        """The same problem on another cluster with other costs, its `evaluate` included."""
        evaluate = None if self.evaluate is None else self.evaluate.moved_to(cluster, costs)
        meter = self.meter if costs is self.costs else None
        return replace(self, cluster=cluster, costs=costs, evaluate=evaluate, meter=meter)

    def with_measured_parts(self, rewrites: Sequence[Rewrite]) -> Problem:
        """With what the parts take that these rewrites make, measured where that is done; itself, where
        nothing more is known then. Raises as `rewritten` and `PartsMeter.measured`."""
        if self.meter is None or not rewrites:
            return self
        costs = self.meter.measured(rewrite.applied(self.graph, rewrites, scaled=True))
        if costs is self.costs:
            return self
        evaluate = self.evaluate
        if evaluate is not None:
            evaluate = evaluate.moved_to(evaluate.cluster, costs)
        return replace(self, costs=costs, evaluate=evaluate)

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
        evaluate = None if self.evaluate is None else self.evaluate.rewritten(rewrites)
        costs = rewrite.rewritten_costs(self.costs, self.graph, graph)
        return replace(self, graph=graph, costs=costs, evaluate=evaluate, meter=None)

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
