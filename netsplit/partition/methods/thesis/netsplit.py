"""`netsplit` and `pesto` of the NetSplit thesis: co-placement, then optimisation over groups (5.2)."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean
from typing import Literal

from netsplit.cluster.cluster import Link
from netsplit.errors import ModelSizeError
from netsplit.graph.quotient import DisjointSets, atoms_of
from netsplit.partition.base import Latency, Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.anneal import Scheduled
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.partition.engines.mixed_integer import BYTES_A_COEFFICIENT, MOST_BYTES, check_engine, solve
from netsplit.partition.engines.rows import Outcome
from netsplit.partition.engines.search import Search
from netsplit.partition.methods.thesis.formulation import (
    Formulation,
    PestoFormulation,
    forward_makespan,
    message_bytes,
    thesis_times,
)
from netsplit.partition.partitioner import Choice, Partitioner, fill_in_order, infeasible
from netsplit.placement.placement import Status
from netsplit.profile.memory import Load

__all__ = ["Ablated", "Grouped", "Groups", "NetSplit", "Pesto", "coplace"]

GroupBytes = Literal["union", "added"]


def coplace(
    problem: Problem, least_groups: int, group_bytes: GroupBytes = "union"
) -> tuple[tuple[str, ...], ...]:
    """Group the nodes; nodes of one group are to share a device.

    Edges are tried by bytes, most first, ties by topological position. Two groups merge unless they
    need more bytes together than the smallest device has. Sets of `graph.colocated` start merged.
    More groups than `least_groups` remain where no edge is left or memory forbids.

    Args:
        problem: graph, costs and capacities.
        least_groups: the floor, 1 or more.
        group_bytes: what a group needs (line 17): by "union" a variable counts once, as in the thesis
            (section 4.3, Algorithm 1); by "added" one between two groups counts at both ends.

    Returns:
        The groups by topological position of their first node.
    """
    graph, memory = problem.graph, problem.memory_model
    atoms = atoms_of(graph)
    atom_of = {name: i for i, atom in enumerate(atoms) for name in atom}
    loads = [memory.load(atom) for atom in atoms]
    limit = min(device.capacity_bytes for device in problem.cluster.devices)
    sets = DisjointSets(len(atoms))

    nbytes = message_bytes(graph)
    for u, v in sorted(nbytes, key=lambda e: (-nbytes[e], graph.position[e[0]], graph.position[e[1]])):
        if sets.count <= least_groups:
            break
        a, b = sets.find(atom_of[u]), sets.find(atom_of[v])
        if a == b:
            continue
        added = loads[a].nbytes + loads[b].nbytes
        need = added if group_bytes == "added" else memory.union_bytes(loads[a], loads[b])
        if need <= limit:
            few, many = sorted((loads[a].variables, loads[b].variables), key=len)
            many |= few  # into the larger, so that each is moved but few times
            loads[sets.merge(a, b)] = Load(need, many)
    in_order = graph.position.__getitem__
    return tuple(
        tuple(sorted((name for i in members for name in atoms[i]), key=in_order)) for members in sets.sets()
    )


Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Grouped(Partitioner):
    """Co-placement, and a formulation over the groups; twice as many groups where they cannot be packed.

    Status, bound and gap of the report are with respect to its groups. Status "limit" says that nothing
    was found in time and that the answer is the fill of the devices in topological order. The model grows
    with pairs of groups times devices squared; one beyond `MOST_BYTES` is not built.
    """

    time_limit_s: float = 60.0
    gap: float = 1e-4  # relative distance of objective and bound at which the search may stop
    engine: str = "auto"
    groups: int | None = None  # least number of groups; None: 2 x devices (Algorithm 3, line 6)
    group_bytes: GroupBytes = "union"  # a group's memory in Algorithm 3, as `coplace` says

    formulation = Formulation

    def __post_init__(self) -> None:
        self.require_time_limit()
        self.require("gap", 0 <= self.gap < 1, "a fraction from 0 to below 1, such as 0.0001")
        enough = self.groups is None or self.groups >= 1
        self.require("groups", enough, "1 or more, or null for 2 x devices")
        self.require_choice("group_bytes", GroupBytes)
        check_engine(self.engine)

    @abstractmethod
    def times(self, problem: Problem, device_of: Mapping[str, str]) -> tuple[float, Mapping[str, float]]:
        """Makespan in seconds, and what forward computations are ordered by."""

    def choose(self, problem: Problem) -> Choice:
        """Raises, beside what `partition` does, ModelSizeError: the model would take too much memory."""
        deadline = time.perf_counter() + min(self.time_limit_s, problem.time_limit_s or self.time_limit_s)
        atoms = len(atoms_of(problem.graph))
        least = self.groups or 2 * len(problem.cluster.devices)
        while True:
            groups = coplace(problem, least, self.group_bytes)
            outcome, device_of = self.place(problem, groups, deadline)
            if outcome.status != "infeasible" or len(groups) >= atoms:
                break
            least = 2 * len(groups)
        if device_of is None and outcome.status == "limit":
            device_of = fill_in_order(problem, [d.capacity_bytes for d in problem.cluster.devices])
        if device_of is None:
            raise infeasible(problem, self.name)
        makespan, start = self.times(problem, device_of)
        return Choice(
            device_of,
            start,
            status=outcome.status,
            engine=outcome.engine,
            objective_s=makespan,
            bound_s=outcome.bound,
            notes={"groups": len(groups), **outcome.notes},
        )

    def place(
        self, problem: Problem, groups: Groups, deadline: float
    ) -> tuple[Outcome, dict[str, str] | None]:
        """The engine's answer, with the bound in seconds; "limit" where the clock ran out before it began.

        Engines take a row as met within a tolerance. Where the answer so exceeds a capacity by a
        few bytes, the problem is solved again with that much less capacity.

        Raises:
            ModelSizeError: the model would be too large.
        """
        margin: dict[str, int] = {}
        while True:
            formulation = self.formulation(problem, groups, margin)
            self._check_size(problem, len(groups), formulation.most_coefficients())
            model = formulation.build()
            left_s = deadline - time.perf_counter()
            if left_s <= 0:
                size = {"variables": len(model.cost), "constraints": len(model.row_upper)}
                return Outcome("", "limit", notes=size), None
            outcome = solve(model, engine=self.engine, time_limit_s=left_s, gap=self.gap, seed=problem.seed)
            if outcome.values is None:  # a bound of these groups says nothing of the fill, which has none
                return replace(outcome, bound=None), None
            device_of = formulation.decode(outcome.values)
            over = _excess(problem, device_of)
            if not over:
                bound = None if outcome.bound is None else outcome.bound * formulation.unit_s
                return replace(outcome, bound=bound), device_of
            for device, nbytes in over.items():
                slight = 1 + problem.cluster.device(device).capacity_bytes // 1000
                assert nbytes <= slight, "the model's memory rows and the count of bytes disagree"
                margin[device] = margin.get(device, 0) + nbytes

    def _check_size(self, problem: Problem, groups: int, coefficients: int) -> None:
        """Raises ModelSizeError: so many coefficients would take too much memory."""
        needed = coefficients * BYTES_A_COEFFICIENT
        if needed <= MOST_BYTES:
            return
        devices = len(problem.cluster.devices)
        raise ModelSizeError(
            f"{self.name}'s model of {groups} groups on {devices} devices has up to {coefficients}"
            f" coefficients and would take about {needed / 1e9:.1f} GB, where {MOST_BYTES / 1e9:.1f} GB are"
            f" allowed: give {self.name} fewer groups (groups=, less than {groups}) or use fewer devices."
        )


def _excess(problem: Problem, device_of: dict[str, str]) -> dict[str, int]:
    """Device name to the bytes by which a placement exceeds its capacity, where it does."""
    used = problem.memory_model.by_device(device_of)
    over = {name: nbytes - problem.cluster.device(name).capacity_bytes for name, nbytes in used.items()}
    return {name: nbytes for name, nbytes in over.items() if nbytes > 0}


STARTS = 16  # annealed at first, as in `auto`
MOST_PLACEMENTS = 100_000  # that are tried one by one


def shortest_step(
    problem: Problem, groups: tuple[tuple[str, ...], ...], deadline: float
) -> tuple[Outcome, dict[str, str] | None]:
    """The placement of the groups whose list-scheduled step is the shortest, within the capacities.

    All placements are tried where there are few enough; else they are annealed from contiguous fills.
    Status "optimal": all were tried.
    """
    graph = replace(problem.graph, colocated=tuple(group for group in groups if len(group) > 1))
    grouped = replace(problem, graph=graph, objective=Latency(), simulator=None)
    search = Search(grouped, STARTS, deadline, methods=(), name="netsplit")
    search.compile()
    if search.annealer.choices > MOST_PLACEMENTS:
        answer = search.run(None)
        outcome = Outcome("annealing", "limit" if answer is None else "feasible", notes=search.notes)
        return outcome, None if answer is None else search.instance.decode(answer.where)
    best: Scheduled | None = None
    status: Status = "optimal"
    for each in search.annealer.every():
        if time.perf_counter() > search.deadline:
            status = "feasible"
            break
        best = each if best is None or each.value_s < best.value_s else best
    if best is None:
        return Outcome("enumeration", "infeasible" if status == "optimal" else "limit"), None
    bound = best.value_s if status == "optimal" else None
    return Outcome("enumeration", status, bound=bound), search.instance.decode(best.where)


@dataclass(frozen=True)
class NetSplit(Grouped):
    """Groups by co-placement, then the placement of groups with the least makespan (5-11).

    As in the thesis, nodes of one device may overlap in the model, memory is (5-18) under ``memory=static``,
    and co-placement stops at 2 x devices groups (Algorithm 3), doubled until they can be packed. Not the
    thesis's are `group_bytes="added"`, another number of `groups`, and `exclusive`.

    With `exclusive`, the placement with the shortest list-scheduled step is taken, by trying all or, with
    many groups, by annealing. `gap` and `engine` count for nothing then, and there is a bound only where all
    were tried. The report's objective is the makespan of the answer in seconds.
    """

    exclusive: bool = False  # one operator at a time on a device, one transfer on a link

    name = "netsplit"

    @property
    def optimises(self) -> str:  # type: ignore[override]
        if self.exclusive:
            return "one pass; a device runs one operator at a time, as (5-11) asks"
        return "one pass, without exclusive devices (5-11): operators of one device may overlap"

    def place(
        self, problem: Problem, groups: Groups, deadline: float
    ) -> tuple[Outcome, dict[str, str] | None]:
        if self.exclusive:
            return shortest_step(problem, groups, deadline)
        return super().place(problem, groups, deadline)

    def times(self, problem: Problem, device_of: Mapping[str, str]) -> tuple[float, Mapping[str, float]]:
        if self.exclusive:
            instance = Instance.of(problem)
            seconds, order = CompiledStep(instance).evaluate(instance.encode(device_of))
            return seconds, {instance.names[int(v)]: float(i) for i, v in enumerate(order)}
        times = thesis_times(problem, device_of)
        return times.makespan, times.start_fp


@dataclass(frozen=True)
class Pesto(Grouped):
    """The placement of co-placed groups with the shortest critical path of the forward pass.

    The thesis's Pesto (section 6.2.1), extended to any number of devices. It has neither the non-overlap nor
    the congestion rows of the original (`pesto_full`), and sees the forward pass alone. What (6-2)..(6-7)
    leave open is as in `NetSplit`: groups by co-placement, and memory. The report's objective is the forward
    makespan in seconds.
    """

    name = "pesto"
    optimises = "forward makespan of one micro-batch, nodes of one device may overlap"
    formulation = PestoFormulation

    def times(self, problem: Problem, device_of: Mapping[str, str]) -> tuple[float, Mapping[str, float]]:
        return forward_makespan(problem, device_of), thesis_times(problem, device_of).start_fp


Part = Literal["backward", "links"]


@dataclass(frozen=True)
class Ablated(Partitioner):
    """`method` without a part of what there is to know.

    Args:
        without: ``backward``: no backward takes time, as where forward seconds alone are measured;
            ``links``: every link is the mean of all.
    """

    method: Partitioner
    without: Part

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.method.name} without {self.without}"

    @property
    def respects_capacity(self) -> bool:  # type: ignore[override]
        return self.method.respects_capacity

    def check(self, problem: Problem) -> None:
        self.method.check(problem)

    def choose(self, problem: Problem) -> Choice:
        cluster, costs, links = problem.cluster, problem.costs, problem.cluster.links.values()
        if self.without == "backward":
            costs = costs.without_backward()
        elif links:
            common = Link(
                mean(each.latency_s for each in links), mean(each.seconds_per_byte for each in links)
            )
            cluster = cluster.with_links(dict.fromkeys(cluster.links, common))
        return self.method.choose(problem.moved_to(cluster, costs))
