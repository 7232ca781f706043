"""`os_dpos`: FastT's operator splitting, placement and sequencing.

    data-parallel graph, or the graph ──► dpos ──► the longest operator of the critical path, cut along every
           ▲                                        dimension into every number of parts ──► dpos of each
           └────────── the best, where it ends sooner; else this is the answer ◄───────────────┘
                       (or replicas side by side, where that is foreseen to take less, or alone fits)

Source: Yi et al., "Fast Training of Deep Learning Models over Multiple GPUs" (FastT), Middleware 2020,
section 5.2, Algorithm 2.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from netsplit import rewrite
from netsplit.errors import ConfigError, InfeasibleError, RewriteError, TimeLimitError
from netsplit.graph.ir import Graph
from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Problem
from netsplit.partition.common.homes import devices_of_nodes, linked_groups
from netsplit.partition.common.instance import Floats, Instance
from netsplit.partition.engines.insertion.schedule import PartialSchedule, schedule_placed
from netsplit.partition.engines.insertion.tasks import StepTasks
from netsplit.partition.methods.list_schedulers import (
    Order,
    longest_ranked_path,
    max_ranks,
    order_key,
    sequenced,
)
from netsplit.partition.partitioner import Choice, Partitioner, infeasible, missing_bytes
from netsplit.placement.placement import Placement, SolverReport
from netsplit.rewrite.records import Rewrite, Split

__all__ = ["PART_S", "OsDpos", "Sequenced", "longest_operators", "placed_ranks", "sums_s"]

log = logging.getLogger(__name__)

OS_DPOS = "os_dpos"
SHORTER = 1e-9  # relative: less is the rounding of sums
PART_S = 0.001  # for each part that is made, about
ROOM = 4  # operators that need more than this part of the smallest device may be in the way of a placement

Start = Literal["data_parallel", "whole"]


@dataclass(frozen=True, eq=False)
class Sequenced:
    """A graph after some rewrites, as DPOS places and times it."""

    given: Problem  # of the graph before them
    problem: Problem
    tasks: StepTasks
    schedule: PartialSchedule
    as_it_stands: bool = False  # in the graph's own order, not as it was timed

    @classmethod
    def of(cls, given: Problem, problem: Problem) -> Sequenced:
        tasks = StepTasks.of(Instance.of(problem))
        return cls(given, problem, tasks, sequenced(problem, tasks, OS_DPOS))

    @classmethod
    def side_by_side(cls, given: Problem, problem: Problem, devices: Sequence[str]) -> Sequenced:
        """The schedule with part j of every operator on the j-th device, whether that fits or not."""
        tasks = StepTasks.of(Instance.of(problem))
        order = tasks.by_rank(max_ranks(Instance.of(problem), tasks))
        device_of = devices_of_nodes(problem.graph, devices)
        schedule = schedule_placed(problem, OS_DPOS, tasks, order, device_of, "replicas")
        return cls(given, problem, tasks, schedule)

    def knowing(self, given: Problem) -> Sequenced:
        """The same, to be foreseen anew by what is known now."""
        return replace(self, given=given, problem=problem_rewritten(given, self.problem.graph))

    @property
    def rewrites(self) -> tuple[Rewrite, ...]:
        """Rewrites from the given graph on."""
        return self.problem.graph.rewrites

    @cached_property
    def finish_s(self) -> float:
        """Seconds until all gradients are there: those of copies are summed last, one sum after another."""
        return self.schedule.makespan + sums_s(self.problem, self.schedule.device_of())

    @classmethod
    def rewritten(cls, given: Problem, graph: Graph, deadline: float) -> Sequenced | None:
        """Sequences a graph rewritten from the given one; None where none fits, or time is over."""
        problem = problem_rewritten(given, graph)
        left = max(deadline - time.perf_counter(), 1e-3)
        try:
            return cls.of(given, replace(problem, time_limit_s=left))
        except (InfeasibleError, TimeLimitError):
            return None

    def cut(self, split: Split, deadline: float) -> Iterator[Sequenced]:
        """Candidates with one more split, and with copies of the weights that its parts read, as
        far as that can be done and fits."""
        graph, rewrites = self.problem.graph, tuple[Rewrite, ...]((split,))
        with suppress(RewriteError):
            while rewrites:
                candidate = self.rewritten(self.given, rewrite.also(graph, *rewrites), deadline)
                if candidate is not None:
                    yield candidate
                plain = len(rewrites) == split.blocks == 1
                copies = rewrite.copies_after(graph, (split,)) if plain else ()
                rewrites = (split, *copies) if copies else ()

    def order_key(self, order: Order) -> Mapping[str, float]:
        """Node -> by what it is ordered."""
        if self.as_it_stands and order == "priority":
            return {name: float(place) for name, place in self.problem.graph.position.items()}
        return order_key(self.schedule, order)

    def placement(self) -> Placement:
        """The placement that would be the answer."""
        priority = topological_priority(self.problem.graph, self.order_key("priority"))
        report = SolverReport("heuristic", 0.0)
        return Placement(
            OS_DPOS, self.schedule.device_of(), priority, report, rewrites=self.problem.graph.rewrites
        )

    @cached_property
    def predicted(self) -> tuple[int, float]:
        """Bytes that are missing on the device that lacks most, and seconds, as the problem has what foresees
        them; infinite seconds under a schedule that has no copies of weights."""
        simulator = self.given.simulator
        assert simulator is not None
        placement = self.placement()
        try:
            predicted = simulator(placement)
        except ConfigError:
            return 0, math.inf
        missing = missing_bytes(self.problem, placement, predicted, simulator.cluster)
        return missing, predicted.iteration_s

    @property
    def rank(self) -> tuple[bool, float]:
        """Least is best: what is foreseen to fit, by its seconds; else by what is missing."""
        missing, seconds = self.predicted
        return missing > 0, missing or seconds

    @property
    def fits(self) -> bool:
        """Whether it fits as predicted, else by the count of bytes that methods go by."""
        if self.given.simulator is None:
            return self.schedule.instance.fits(self.schedule.where[self.schedule.instance.atom_of])
        missing, seconds = self.predicted
        return not missing and seconds < math.inf

    @cached_property
    def where(self) -> list[int]:
        """[n] device of each node."""
        return self.schedule.where[self.schedule.instance.atom_of].tolist()


@dataclass(frozen=True)
class OsDpos(Partitioner):
    """Operators of the critical path in parts, as long as each of them makes the step end sooner.

    The operator of the critical path with most seconds is cut along every dimension that the rules of
    `netsplit.rewrite` allow, into two parts up to as many as there are devices, with copies of its weights
    and without. DPOS schedules each; the one that ends first is kept where it gains, and the path is taken
    anew. The first operator without gain is the last.

    It begins with data parallelism where a replica fits on each device, or with the graph as it is, whichever
    DPOS ends sooner; else with replicas side by side; else operators of most bytes are cut until one fits.

    DPOS lets no message wait for another. So of the splits, beginnings, whole graph and replicas the one that
    `Problem.simulator` foresees to take least is answered, after its parts were measured (`Problem.meter`).

    Args:
        start: "whole" begins with the graph as it is.
        order: as `dpos` has it.
        time_limit_s: when it answers what it has; a problem's own limit comes first. Data parallelism is left
            out where making its parts would take longer.
    """

    name = OS_DPOS
    optimises = "one step's time, greedily: dpos, with operators of its critical path in parts"

    start: Start = "data_parallel"
    order: Order = "priority"
    time_limit_s: float = 300.0

    def __post_init__(self) -> None:
        self.require_choice("start", Start)
        self.require_choice("order", Order)
        self.require_time_limit()

    def cuts_operators(self, problem: Problem) -> bool:
        return True

    def choose(self, problem: Problem) -> Choice:
        deadline = time.perf_counter() + (problem.time_limit_s or self.time_limit_s)
        whole, refusal = None, None
        try:
            whole = Sequenced.of(problem, problem)
        except InfeasibleError as error:
            refusal = error
        fitting = [] if whole is None else [whole]
        replicas, narrow = list[Sequenced](), None
        if self.start == "data_parallel":
            replicas = list(_replicas(problem, deadline if fitting else math.inf))
            listed = list(_data_parallel(problem, deadline))
            fitting += listed or [each for each in replicas if each.fits][:1]
        if not fitting:
            narrow = _in_parts_that_fit(problem, deadline)
            if narrow is None:
                raise refusal or infeasible(problem, self.name)
            fitting = [narrow]
        begun = min(fitting, key=lambda each: each.finish_s)
        best, ended_by = _split_while_it_gains(begun, deadline)
        answer, scored = _least(problem, [best, begun, *fitting, *replicas])
        schedule = answer.schedule
        origins = {id(whole): "whole", id(narrow): "narrow", **{id(each): "replicas" for each in replicas}}
        start = origins.get(id(begun), "data_parallel")
        cut = answer is best and best is not begun
        notes = {
            **schedule.notes(),
            "start": start,
            "answered": "splits" if cut else origins.get(id(answer), "data_parallel"),
            "ended_by": ended_by,
            "splits": [each.to_dict() for each in answer.rewrites[len(begun.rewrites) :] if cut],
            **scored,
        }
        return Choice(
            schedule.device_of(),
            answer.order_key(self.order),
            objective_s=answer.finish_s,
            notes=notes,
            rewrites=answer.rewrites,
        )


def _data_parallel(problem: Problem, deadline: float) -> Iterator[Sequenced]:
    """Schedules with every operator in parts along the samples, on copies of the weights or on the one there
    is; none where a replica with its part of the batch does not fit on each device."""
    devices, memory = problem.cluster.devices, problem.memory_model
    replica = sum(memory.state_bytes.values()) + sum(memory.variable_bytes.values()) / len(devices)
    if len(devices) < 2 or replica > min(each.capacity_bytes for each in devices):
        return
    making_s = PART_S * len(problem.graph) * len(devices)
    for parts in (rewrite.replicate, rewrite.along_samples):
        if time.perf_counter() + making_s > deadline:
            return
        with suppress(RewriteError):
            rewrites = parts(problem.graph, len(devices))
            graph = rewrite.applied(problem.graph, (*problem.graph.rewrites, *rewrites))
            candidate = Sequenced.rewritten(problem, graph, deadline)
            if candidate is not None:
                yield candidate


def _replicas(problem: Problem, deadline: float) -> Iterator[Sequenced]:
    """One on each device, on copies of the weights; and on those of a server alone, whose sums no slow link
    carries. None where no device has room for these, there are fewer samples than devices, or making the
    parts would take too long."""
    graph, cluster = problem.graph, (problem.simulator or problem).cluster
    weights = sum(each.nbytes for each in graph.initializers.values())
    if weights > max(each.capacity_bytes for each in cluster.devices):
        return
    every = tuple(each.name for each in cluster.devices)
    for devices in dict.fromkeys((linked_groups(cluster)[0], every)):
        if len(devices) < 2 or time.perf_counter() + PART_S * len(graph) * len(devices) > deadline:
            continue
        with suppress(RewriteError):
            rewrites = rewrite.replicate(graph, len(devices))
            if rewrites:
                copied = rewrite.applied(graph, (*graph.rewrites, *rewrites))
                replicas = Sequenced.side_by_side(problem, problem_rewritten(problem, copied), devices)
                plain = replace(replicas, as_it_stands=True)  # which may hold less at once
                yield plain if problem.simulator and not replicas.fits and plain.fits else replicas


def _in_parts_that_fit(problem: Problem, deadline: float) -> Sequenced | None:
    """The operators of most bytes in parts, one after another, until a placement fits; None: none does."""
    now, devices = problem, problem.cluster.devices
    if problem.memory_model.total_bytes > sum(each.capacity_bytes for each in devices):
        return None
    while (narrower := _narrower(problem, now, deadline)) is not None:
        now = narrower
        cut = Sequenced.rewritten(problem, now.graph, deadline)
        if cut is not None:
            return cut
    return None


def _narrower(given: Problem, now: Problem, deadline: float) -> Problem | None:
    """The problem with the operator of most bytes in parts, cut so that the largest has least."""
    devices, load = now.cluster.devices, now.memory_model.load
    nbytes = {name: load((name,)).nbytes for name in now.graph.nodes}
    small = min(each.capacity_bytes for each in devices) // ROOM
    for name in sorted((v for v in nbytes if nbytes[v] > small), key=lambda v: -nbytes[v]):
        best, least = None, nbytes[name]
        for split in _options(now.graph, name, len(devices)):
            if time.perf_counter() > deadline:
                return best
            with suppress(RewriteError):
                cut = problem_rewritten(given, rewrite.also(now.graph, split))
                new = [v for v in cut.graph.nodes if v not in now.graph.nodes]
                widest = max(cut.memory_model.load((v,)).nbytes for v in new)
                if widest < least:
                    best, least = cut, widest
        if best is not None:
            return best
    return None


def _split_while_it_gains(begun: Sequenced, deadline: float) -> tuple[Sequenced, str]:
    """Lines 4 to 14 of Algorithm 2; and why it ended."""
    best, tell = begun, begun.given.improved
    while True:
        cut, ended = _best_cut(best, deadline)
        if cut is None or cut.finish_s >= best.finish_s * (1 - SHORTER):
            return best, ended
        best = cut
        if tell is not None:
            count = sum(isinstance(each, Split) for each in best.rewrites)
            tell(best.finish_s, f"{count} operators in parts")


def _best_cut(now: Sequenced, deadline: float) -> tuple[Sequenced | None, str]:
    """The best cut of the longest operator of the path that can be cut; or why there is none."""
    best: Sequenced | None = None
    for v in longest_operators(now):
        devices = len(now.given.cluster.devices)
        options = list(_options(now.problem.graph, now.schedule.instance.names[v], devices))
        for split in options:
            if time.perf_counter() > deadline:
                return best, "time"
            for cut in now.cut(split, deadline):
                if best is None or cut.finish_s < best.finish_s:
                    best = cut
        if options:
            return best, "no gain"
    return None, "nothing left to split"


def _options(graph: Graph, name: str, devices: int) -> Iterator[Split]:
    """Every dimension of a node, and every number of parts up to that of the devices."""
    for axis, size in rewrite.split_axes(graph, name).items():
        for parts in range(2, min(devices, size) + 1):
            yield Split(name, axis, tuple(size // parts + (i < size % parts) for i in range(parts)))


def placed_ranks(tasks: StepTasks, instance: Instance, where: list[int]) -> Floats:
    """[2n] upward ranks with the seconds that tasks and messages take where they are."""
    on = np.array([*where, *where], np.int64)
    seconds = tasks.seconds[np.arange(2 * tasks.n), on]
    p, q = on[tasks.source], on[tasks.target]
    edge_s = tasks.messages * instance.latency_s[p, q] + tasks.nbytes * instance.seconds_per_byte[p, q]
    return tasks.upward_ranks(seconds, np.where(p == q, 0.0, edge_s))


def longest_operators(now: Sequenced) -> list[int]:
    """Nodes of the critical path under the placement, by falling seconds; ties in the path's order."""
    instance = now.schedule.instance
    path = longest_ranked_path(now.tasks, placed_ranks(now.tasks, instance, now.where))
    seconds = instance.forward_s + instance.backward_s
    return sorted(path, key=lambda v: -seconds[v, now.where[v]])


def _least(problem: Problem, candidates: Sequence[Sequenced]) -> tuple[Sequenced, dict[str, Any]]:
    """The one that is foreseen to fit and to take least, or else to lack least, where the problem has what
    foresees; else the first. Where the problem has a `meter`, by what its parts were measured to take."""
    if problem.simulator is None:
        return candidates[0], {}
    can_be = {each: each for each in candidates if each.predicted[1] < math.inf}  # and as it is known now
    if not can_be:
        problem.simulator(candidates[0].placement())
    notes = {"foreseen_s": [each.predicted[1] for each in candidates]}
    while True:
        answer = min(can_be, key=lambda each: can_be[each].rank)
        try:
            known = problem.with_measured_parts(answer.rewrites)
        except ConfigError as refusal:
            if len(can_be) == 1:
                raise
            log.info("%s: parts skipped: %s", OsDpos.name, refusal)
            del can_be[answer]
            continue
        if known is problem:
            return answer, notes
        problem = known
        can_be = {each: each.knowing(problem) for each in can_be}


def sums_s(problem: Problem, device_of: Mapping[str, str]) -> float:
    """Seconds of the sums of gradients of copies on several devices."""
    graph = problem.graph
    homes: dict[str, set[str]] = {}
    sizes: dict[str, int] = {}
    for node in graph:
        for init in (graph.initializers[k] for k in node.initializers):
            if init.requires_grad:
                homes.setdefault(init.held_as, set()).add(device_of[node.name])
                sizes[init.held_as] = init.nbytes
    nbytes: Counter[tuple[str, ...]] = Counter()
    for k, there in homes.items():
        if len(there) > 1:
            nbytes[tuple(each.name for each in problem.cluster.devices if each.name in there)] += sizes[k]
    return sum(problem.cluster.ring_seconds(count, devices) for devices, count in nbytes.items())


def problem_rewritten(given: Problem, graph: Graph) -> Problem:
    """The problem of a graph that was made of the given one."""
    costs = rewrite.rewritten_costs(given.costs, given.graph, graph)
    return replace(
        given, graph=graph, costs=costs, simulator=None, improved=None, known=None, time_limit_s=None
    )
