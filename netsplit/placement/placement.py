"""A placement: every node on a device, in one order, with the report of how it was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from netsplit.placement.exchange import Exchange
from netsplit.rewrite.records import Rewrite

__all__ = [
    "BOUND_FOR",
    "TOLD",
    "Placement",
    "Shard",
    "ShardName",
    "SolverReport",
    "Stage",
    "Status",
    "device_in_turn",
]

Status = Literal["optimal", "feasible", "infeasible", "limit", "heuristic"]

BOUND_FOR = "bound_for"
"""Key of `SolverReport.notes`: the `Objective.bound_key` that the report's bound was proven for."""

TOLD = "told"
"""Key of `SolverReport.notes`: what a summary says beside all else."""

ShardName = Literal["optimizer", "gradients", "parameters"]


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
    begins: tuple[str, ...] = ()
    """Nodes with which, in the order of priority, a stage begins that several devices compute together: a
    schedule orders these as one."""
    alike: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Device -> itself and others, which hold the same and do the same at the same time, each with
    micro-batches of its own. It stands for them: they are not among the cluster's devices."""

    def to_dict(self) -> dict[str, Any]:
        """The placement for a file of JSON."""
        rewrites = [each.to_dict() for each in self.rewrites]
        exchanges = [each.to_dict() for each in self.exchanges]
        own = {"recomputed": sorted(self.recomputed), "rewrites": rewrites, "exchanges": exchanges}
        return asdict(self) | own

    @classmethod
    def given(cls, device_of: dict[str, str], priority: dict[str, int]) -> Placement:
        """A placement of no method."""
        return cls("given", device_of, priority, SolverReport("heuristic", 0.0))

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
