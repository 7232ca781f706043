"""A profiled graph, as files hold it: what to place, its costs, and perhaps the devices.

    graph file ──formats.read──► Workload ──problem(cluster, objective, ...)──► Problem ──► a partitioner

Three formats are read, recognised by content: our own JSON, PipeDream's `graph.txt`, and Tarnawski et al.'s
JSON (`netsplit.formats`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from netsplit.cluster.cluster import Cluster
from netsplit.cluster.described import ClusterDescription, kind_name
from netsplit.errors import ConfigError, InfeasibleError
from netsplit.graph.ir import Graph
from netsplit.partition.base import MemoryRule, Problem
from netsplit.partition.objectives import MaxLoad, Period, objective_named
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs, offloaded
from netsplit.profile.memory import memory_of
from netsplit.profile.predict import predicted_costs
from netsplit.program.schedules import Schedule, SingleBatch
from netsplit.settings import ObjectiveName, OffloadName
from netsplit.simulate.simulator import Simulator

__all__ = ["ACCELERATOR", "CPU", "Passes", "Workload"]

ACCELERATOR, CPU = "accelerator", "cpu"
"""Device kinds of the public formats."""

Passes = Literal["training", "forward"]

_TORCH = "aten."  # begins the operators of a captured graph; those of the public formats have other names


@dataclass(frozen=True)
class Workload:
    """A graph with its costs. Seconds and bytes throughout, whatever the file's own unit."""

    name: str
    graph: Graph  # node names are the file's ids; `Node.module` says in words what a node is
    costs: Costs  # by the file's own device kinds; the first is what speeds are relative to
    cluster: Cluster | None = None  # the file's own
    unit: str = "s"  # of times in the file
    unit_s: float = 1.0  # seconds in that unit
    period: Period = field(default_factory=MaxLoad)  # of `max_load`: `StageTime` of PipeDream's files
    backward_nodes: frozenset[str] = frozenset()  # tasks that are backward computations of their own
    unsupported: frozenset[str] = frozenset()
    """Nodes that accelerators cannot run: their seconds there exceed those of any valid plan."""
    remarks: tuple[str, ...] = ()  # what the reader changed or assumed

    @property
    def base_kind(self) -> str:
        """The device kind that has speed 1."""
        return ACCELERATOR if ACCELERATOR in self.costs.devices else next(iter(self.costs.devices))

    @property
    def knows_lifetimes(self) -> bool:
        """Whether the graph lists what the backward keeps, as captured graphs do."""
        return any(node.saved or node.saved_bytes for node in self.graph)

    def need_bytes(self, in_flight: int = 1) -> int:
        """Bytes of everything on one device, as (5-18) counts them."""
        return memory_of(self.graph, self.graph.nodes, self.costs.alpha, self.costs.copies(in_flight))

    def forward_only(self) -> Workload:
        """The workload without backward, as in inference: weights and variables count once.

        Raises:
            ConfigError: backward computations are nodes of the graph.
        """
        if self.backward_nodes:
            raise ConfigError(
                f"passes is forward, but '{self.name}' has backward computations as nodes: "
                "use passes=training."
            )
        graph, copies = self.graph, self.costs.variable_copies
        still = {k: replace(v, requires_grad=False) for k, v in graph.variables.items()}
        fixed = {k: replace(v, requires_grad=False) for k, v in graph.initializers.items()}
        copies = 1 if copies is None else min(copies, 1)
        costs = replace(self.costs.without_backward(), alpha=1, variable_copies=copies)
        return replace(self, graph=replace(graph, variables=still, initializers=fixed), costs=costs)

    def problem(
        self,
        cluster: Cluster | ClusterDescription | None = None,
        objective: ObjectiveName = "latency",
        *,
        schedule: Schedule | None = None,
        seed: int = 0,
        time_limit_s: float | None = None,
        passes: Passes = "training",
        alpha: int | None = None,
        variable_copies: int | None = None,
        memory: MemoryRule = "static",
        offload: OffloadName | None = None,
    ) -> Problem:
        """The problem of placing this workload.

        Args:
            cluster: None: the file's own. A description gets one device kind per speed, with the seconds of
                `base_kind` divided by the speed; or one per accelerator model, with seconds predicted from
                the graph's operators (`profile.predict`).
            schedule: for ``simulated``; None: one batch at a time, as for other objectives.
            passes: ``forward`` leaves the backward out (see `forward_only`).
            alpha: bytes of training state per parameter byte; None: as in the file, or 2.
            variable_copies: how often a variable's bytes count; None: as in the file, or (5-18)'s n + 1.
            memory: counted by (5-18), or by the lifetimes of a captured graph's tensors.
            offload: what lies in host memory (`profile.costs.offloaded`); None: as in the file.

        Raises:
            ConfigError: no cluster, or one that does not go with the file's costs.
        """
        work = self.forward_only() if passes == "forward" else self
        work = replace(work, costs=self._with_memory(work.costs, alpha, variable_copies))
        asked = objective_named(objective, self.period)
        if schedule is None or not asked.scheduled:
            schedule = SingleBatch()
        given = cluster or self.cluster
        size = len(given.speeds if isinstance(given, ClusterDescription) else given.devices) if given else 1
        in_flight = schedule.in_flight(size)
        spec, costs = work._resolved(given, in_flight)
        costs = offloaded(costs, work.graph, self._offload(offload, passes, memory))
        return Problem(
            graph=work.graph,
            costs=costs,
            cluster=spec,
            in_flight=in_flight,
            seed=seed,
            simulator=Simulator(work.graph, spec, costs, schedule, passes == "training"),
            objective=asked,
            time_limit_s=time_limit_s,
            backward_nodes=self.backward_nodes,
            memory=memory,
        )

    def check_supported(self, problem: Problem, placement: Placement) -> None:
        """Raises InfeasibleError: a node is on an accelerator that cannot run it."""
        kinds = {device.name: device.kind for device in problem.cluster.devices}
        for node in sorted(self.unsupported):
            if kinds[placement.device_of[node]] != CPU:
                raise InfeasibleError(
                    f"{placement.method} puts node {node} on '{placement.device_of[node]}', which cannot "
                    "run it: use a method that minimises time, such as m_etf or auto."
                )

    def _offload(self, asked: OffloadName | None, passes: Passes, memory: MemoryRule) -> OffloadName:
        name = self.costs.offload.name if asked is None else asked
        if name != "none" and passes == "forward":
            raise ConfigError(f"offload is {name}, but passes=forward keeps nothing: leave one of them out.")
        if name != "none" and memory == "static":
            raise ConfigError(
                f"offload is {name}, but memory=static counts everything on the device: give "
                "memory=lifetimes, or leave offload out."
            )
        return name

    def _with_memory(self, costs: Costs, alpha: int | None, variable_copies: int | None) -> Costs:
        for key, value, least in (("alpha", alpha, 1), ("variable_copies", variable_copies, 0)):
            if value is not None and value < least:
                raise ConfigError(f"{key} is {value}: give at least {least}, or null.")
            if value is not None and self.costs.variable_copies == 0:
                raise ConfigError(
                    f"{key} is {value}, but the sizes in '{self.name}' are final: leave it out."
                )
        return replace(
            costs,
            alpha=costs.alpha if alpha is None else alpha,
            variable_copies=costs.variable_copies if variable_copies is None else variable_copies,
        )

    def _resolved(
        self, cluster: Cluster | ClusterDescription | None, in_flight: int
    ) -> tuple[Cluster, Costs]:
        """The cluster's devices and links, and costs of all its device kinds."""
        if cluster is None:
            raise ConfigError(
                f"'{self.name}' describes no devices: give some, as in cluster=uniform cluster.devices=4 "
                "cluster.bandwidth=1e9 cluster.capacity=16e9 cluster.latency=0."
            )
        costs = self.costs
        if isinstance(cluster, ClusterDescription):
            base = "" if cluster.accelerators else self.base_kind
            if not cluster.accelerators:
                speeds, own = dict.fromkeys(cluster.speeds.values()), costs.devices[base]
                kinds = {kind_name(base, speed): own.scaled(speed) for speed in speeds}
                costs = replace(costs, devices=kinds)
            elif any(node.op.startswith(_TORCH) for node in self.graph):
                models = {each.name: each for each in cluster.accelerators.values()}
                predicted = predicted_costs(self.graph, models, costs.alpha)
                costs = replace(predicted, variable_copies=costs.variable_copies)
            else:
                raise ConfigError(
                    f"cluster '{cluster.name}' names device models, which need torch's operators to predict "
                    f"times, but '{self.name}' has none: choose a cluster with speeds, such as mixed4."
                )
            if not cluster.overlap:
                costs = costs.without_overlap()
            cluster = cluster.cluster(base, self.need_bytes(in_flight))
        cluster.check_links()
        for device in cluster.devices:
            missing = self.graph.nodes.keys() - costs.of(device.kind).nodes.keys()
            if missing:
                known = ", ".join(costs.devices)
                raise ConfigError(
                    f"device '{device.name}' is of kind '{device.kind}', but '{self.name}' has no time for "
                    f"node '{min(missing)}' on that kind: it knows {known}."
                )
        if self.unsupported and all(device.kind != CPU for device in cluster.devices):
            raise ConfigError(
                f"node {min(self.unsupported)} of '{self.name}' runs on CPUs only, but cluster "
                f"'{cluster.name}' has none: leave cluster out to use the file's own."
            )
        return cluster, costs
