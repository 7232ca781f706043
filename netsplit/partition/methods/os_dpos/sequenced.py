"""A graph after some rewrites, placed and timed by DPOS: what OS-DPOS chooses among."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from netsplit import rewrite
from netsplit.errors import ConfigError, InfeasibleError, RewriteError, TimeLimitError
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import missing_bytes
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.insertion import PartialSchedule, StepTasks, schedule_placed
from netsplit.partition.methods.dpos import Order, max_ranks, order_key, sequenced
from netsplit.placement.placement import Placement, SolverReport
from netsplit.placement.priority import topological_priority
from netsplit.rewrite.records import Rewrite, Split

__all__ = ["OS_DPOS", "Sequenced", "problem_rewritten", "sums_s"]

OS_DPOS = "os_dpos"


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
        return cls(given, problem, tasks, sequenced(problem, tasks, OS_DPOS)[0])

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
        graph = self.problem.graph
        with suppress(RewriteError):
            yield from self._also(deadline, split)
            copies = rewrite.copies_after(graph, (split,)) if split.blocks == 1 else ()
            if copies:
                yield from self._also(deadline, split, *copies)

    def _also(self, deadline: float, *rewrites: Rewrite) -> Iterator[Sequenced]:
        candidate = self.rewritten(self.given, rewrite.also(self.problem.graph, *rewrites), deadline)
        if candidate is not None:
            yield candidate

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
