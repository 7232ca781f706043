"""The frame of every method: timing, the check of the capacities, the placement and its report.

And the answers of many methods, judged by one measure, fills of devices in order, and what is missing where
nothing fits.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final, get_args

import numpy as np

from netsplit import rewrite
from netsplit.cluster.cluster import Cluster
from netsplit.errors import ConfigError, InfeasibleError, ModelSizeError, NetSplitError, TimeLimitError, brief
from netsplit.graph.quotient import atoms_of, topological_priority
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import BOUND_FOR, Placement, SolverReport, Stage, Status
from netsplit.profile.memory import Load
from netsplit.rewrite.records import Rewrite
from netsplit.simulate.timeline import Timeline
from netsplit.tables import nbytes

__all__ = [
    "Candidate",
    "Choice",
    "Partitioner",
    "atom_needs",
    "candidates",
    "check_capacity",
    "drawn_fills",
    "fill_in_order",
    "infeasible",
    "missing_bytes",
    "needed_bytes",
    "order_of",
    "read_bytes",
]


log = logging.getLogger(__name__)

_ENDLESS = 2**62  # seconds: larger whole numbers are no floats


@dataclass(frozen=True)
class Choice:
    """What a method decides, and what it knows of that. Seconds throughout."""

    device_of: dict[str, str]  # node name -> device name
    key: Mapping[str, float] | None = None  # nodes run by it, as far as edges allow; None: as captured
    status: Status = "heuristic"
    engine: str = ""
    objective_s: float | None = None  # the method's own
    bound_s: float | None = None  # no answer to what the method solves has a lower one
    bound_for: str = ""  # `Objective.bound_key` of what the bound is proven for; "": for less than that
    notes: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    cuts: tuple[str, ...] = ()  # `Placement.cuts`
    begins: tuple[str, ...] = ()  # `Placement.begins`
    rewrites: tuple[Rewrite, ...] = ()  # `Placement.rewrites`
    exchanges: tuple[Exchange, ...] = ()  # `Placement.exchanges`

    def report(self, seconds: float) -> SolverReport:
        objective_s, bound_s, gap = self.objective_s, self.bound_s, None
        if objective_s is not None and bound_s is not None:
            bound_s = min(bound_s, objective_s)
            gap = (objective_s - bound_s) / (objective_s or 1.0)
        proven = {BOUND_FOR: self.bound_for} if self.bound_for else {}
        return SolverReport(
            self.status, seconds, self.engine, objective_s, bound_s, gap, {**proven, **self.notes}
        )


class Partitioner(ABC):
    """A method that decides a placement. Subclasses are small dataclasses of their parameters."""

    name: str = ""
    respects_capacity: bool = True
    optimises: str = ""  # what the method itself minimises, in a few words
    tries_others: bool = False  # it asks the other methods, and takes the best answer
    time_limit_s: float | None = None  # None: it decides at once

    def require(self, parameter: str, holds: bool, accepted: str) -> None:
        """Refuse the value of one of the method's own parameters, unless it `holds`.

        Raises:
            ConfigError: it does not.
        """
        if not holds:
            raise ConfigError(
                f"{self.name}.{parameter} is {brief(getattr(self, parameter))}: give {accepted}."
            )

    def require_choice(self, parameter: str, kind: Any) -> None:
        """Refuse what is none of the names in a `Literal`; raises as `require`."""
        value, names = getattr(self, parameter), get_args(kind)
        accepted = " or ".join(names) if len(names) == 2 else f"one of {', '.join(names)}"
        self.require(parameter, isinstance(value, str) and value in names, accepted)

    def require_time_limit(self) -> None:
        """Refuse a `time_limit_s` that is no number above 0; raises as `require`."""
        value = self.time_limit_s
        number = isinstance(value, float) or (isinstance(value, int) and value < _ENDLESS)
        holds = number and not isinstance(value, bool) and value > 0  # type: ignore[operator]
        self.require("time_limit_s", holds, "more than 0 seconds (inf for no limit)")

    @final
    def partition(self, problem: Problem) -> Placement:
        """Decide.

        Raises:
            InfeasibleError: no placement fits; the message says how many bytes are missing where.
            RewriteError: the answer has rewrites that are none of the graph's, or has sizes of parts that do
                not add up; along the samples they may be of another batch.
        """
        started = time.perf_counter()
        self.check(problem)
        choice = self.choose(problem)
        rewrites = choice.rewrites or problem.graph.rewrites
        graph = problem.graph
        if choice.rewrites:
            graph = rewrite.applied(problem.graph, rewrites, scaled="samples")
        return Placement(
            method=self.name,
            device_of=choice.device_of,
            priority=topological_priority(graph, choice.key or graph.position),
            report=replace(choice.report(time.perf_counter() - started), optimises=self.optimises),
            stages=choice.stages,
            cuts=choice.cuts,
            begins=choice.begins,
            rewrites=rewrites,
            exchanges=choice.exchanges,
        )

    def cuts_operators(self, problem: Problem) -> bool:
        """Whether its answers may be in parts, and so fit where no placement of whole operators does."""
        return False

    def portfolio(self, problem: Problem) -> Sequence[Partitioner]:
        """Methods than which it promises to be no worse: whoever makes it fit asks them, too."""
        return ()

    def check(self, problem: Problem) -> None:
        """Refuse what no method can place, before any work is done."""
        if self.cuts_operators(problem):
            rewrite.require_operators(problem.graph)
        elif self.respects_capacity:
            check_capacity(problem, self.name)

    @abstractmethod
    def choose(self, problem: Problem) -> Choice:
        """Which device runs which node, and in which order; raises as `partition`."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A placement that one method gave, and what it is worth."""

    method: str
    placement: Placement
    where: Ints  # [n]
    value_s: float
    fits: bool


def candidates(
    problem: Problem,
    instance: Instance,
    methods: Iterable[Partitioner],
    value_s: Callable[[Placement], float],
    deadline: float,
    left_out: dict[str, str] | None = None,
    patience: float = 0.5,
) -> Iterator[Candidate]:
    """One candidate after another; a method that refuses the problem, or breaks, gives none.

    Args:
        methods: each is given what is left of the time, those that search less.
        value_s: seconds of a placement, less is better.
        deadline: on ``time.perf_counter``; methods that come later are left out.
        patience: the part of what is left that each is given.
        left_out: gets each method that the problem is too large for, or that broke, and why.
    """
    left_out = {} if left_out is None else left_out
    for method in methods:
        left_s = deadline - time.perf_counter()
        if left_s <= 0:
            log.debug("portfolio: no time left for %s", method.name)
            return
        own = replace(problem, time_limit_s=max(0.05, patience * left_s))
        try:
            placement = method.partition(own)
            where = instance.encode(placement.device_of)
            fits = instance.stages_fit(placement.stages) if placement.replicas else instance.fits(where)
            candidate = Candidate(method.name, placement, where, value_s(placement), fits)
        except (ModelSizeError, TimeLimitError) as refusal:
            log.info("portfolio: %s", refusal)
            left_out[method.name] = str(refusal)
        except NetSplitError as refusal:
            log.debug("portfolio: %s refuses: %s", method.name, refusal)
        except MemoryError as error:
            log.warning("portfolio: %s ran out of memory and is left out", method.name)
            left_out[method.name] = f"out of memory: {error}"
        except Exception as error:  # an answer without one method is better than none
            log.exception("portfolio: %s failed and is left out", method.name)
            left_out[method.name] = f"{type(error).__name__}: {error}"
        else:
            yield candidate


def order_of(instance: Instance, placement: Placement) -> Ints:
    """[n] nodes by priority."""
    return np.argsort([placement.priority[name] for name in instance.names], kind="stable").astype(np.int64)


def fill_in_order(
    problem: Problem, limits: Sequence[int], accepts: Callable[[int, tuple[str, ...]], bool] | None = None
) -> dict[str, str] | None:
    """Place atoms in topological order on the first device until one does not fit, then on the next.

    Args:
        problem: the graph, and the devices in the order they are filled.
        limits: bytes that each device may hold.
        accepts: a further test of (device index, atom); an accepted atom is placed.

    Returns:
        Node name to device name, or None where an atom fits on no device that is left.
    """
    memory, devices = problem.memory_model, problem.cluster.devices
    device_of: dict[str, str] = {}
    p, held = 0, Load()
    for atom in atoms_of(problem.graph):
        load = memory.load(atom)
        while memory.union_bytes(held, load) > limits[p] or (accepts is not None and not accepts(p, atom)):
            p, held = p + 1, Load()
            if p == len(devices):
                return None
        held = memory.union(held, load)
        device_of.update(dict.fromkeys(atom, devices[p].name))
    return device_of


def drawn_fills(problem: Problem, count: int) -> list[dict[str, str]]:
    """Contiguous placements: devices in drawn orders, filled to drawn fractions of their capacity."""
    draw, cluster, fills = random.Random(problem.seed), problem.cluster, []
    for _ in range(count):
        devices = draw.sample(cluster.devices, len(cluster.devices))
        own = replace(problem, cluster=replace(cluster, devices=tuple(devices)))
        limits = [round(device.capacity_bytes * draw.uniform(0.6, 1.0)) for device in devices]
        limits[-1] = sum(device.capacity_bytes for device in devices)
        fills.append(fill_in_order(own, limits))
    return [each for each in fills if each is not None]


def check_capacity(problem: Problem, method: str) -> None:
    """Refuse what no method can place: more bytes than all devices have, or one atom than any has.

    The first is the check of NetSplit thesis, Algorithm 3, lines 7-9.
    """
    devices = problem.cluster.devices
    total = sum(device.capacity_bytes for device in devices)
    required = problem.memory_model.total_bytes
    if required > total:
        needed, there, lacking = map(read_bytes, (required, total, required - total))
        reason = (
            f"the model needs at least {needed} but all devices together have {there}: {lacking} are missing"
        )
        raise infeasible(problem, method, f"{reason} in total")
    memory = problem.memory_model
    largest = max(devices, key=lambda device: device.capacity_bytes)
    for atom in atoms_of(problem.graph):
        missing = memory.load(atom).nbytes - largest.capacity_bytes
        if missing > 0:
            needed = f"{atom_needs(atom)} {read_bytes(missing + largest.capacity_bytes)} on one device"
            lacking = f"{read_bytes(missing)} are missing on the largest, '{largest.name}'"
            raise infeasible(problem, method, f"{needed}: {lacking}")


def missing_bytes(problem: Problem, placement: Placement, predicted: Timeline, cluster: Cluster) -> int:
    """What the device that lacks most lacks: by the count of (5-18), or at the peaks that were predicted.

    Args:
        problem: of the graph after the placement's rewrites.
        cluster: with the capacities that there are, where a method is told others (`Simulator.cluster`).
    """
    instance, static = Instance.of(problem), problem.memory == "static"
    capacity = instance.capacity if static else np.array([each.capacity_bytes for each in cluster.devices])
    return max(0, int((needed_bytes(instance, placement, predicted) - capacity).max()))


def infeasible(problem: Problem, method: str, reason: str | None = None) -> InfeasibleError:
    """The error for a problem whose memory limits cannot be met: what is missing, and what would do.

    The remedy is proven by a placement: the least common rise of all capacities with which the
    fill in topological order succeeds. Without a `reason`, the shortage of that placement is named.
    """
    devices = problem.cluster.devices
    used = problem.memory_model.by_device(_least_fill(problem))
    worst = max(devices, key=lambda device: used.get(device.name, 0) - device.capacity_bytes)
    missing = used.get(worst.name, 0) - worst.capacity_bytes
    if reason is None and missing <= 0:
        return InfeasibleError(
            f"{method} finds no placement that fits on cluster '{problem.cluster.name}', though a fill in "
            "topological order fits: use another method, or devices with more memory."
        )
    if reason is None:
        reason = (
            f"the best packing found holds {read_bytes(used.get(worst.name, 0))} on device '{worst.name}', "
            f"which has {read_bytes(worst.capacity_bytes)}: {read_bytes(missing)} are missing there"
        )
    capacities = {device.capacity_bytes for device in devices}
    if len(capacities) == 1:
        cure = f"a capacity of {read_bytes(worst.capacity_bytes + missing, True)} on each device is enough"
    else:
        cure = f"{read_bytes(missing, True)} more on each device is enough"
    return InfeasibleError(
        f"{method} finds no placement that fits on cluster '{problem.cluster.name}', as {reason}; {cure}"
        " (or use more devices, a smaller micro-batch, or an optimizer with less state)."
    )


def read_bytes(size: int, enough: bool = False) -> str:
    """Bytes for people, with the exact number: ``1.5 MiB (1572864 bytes)``; `enough`: rounded up."""
    return f"{size} bytes" if size < 2**20 else f"{nbytes(size, enough)} ({size} bytes)"


def _least_fill(problem: Problem) -> dict[str, str]:
    """The fill in topological order with the least common rise of all capacities (by bisection)."""
    capacities = [device.capacity_bytes for device in problem.cluster.devices]
    rises = range(max(0, problem.memory_model.total_bytes - min(capacities)) + 1)

    def filled(rise: int) -> dict[str, str] | None:
        return fill_in_order(problem, [c + rise for c in capacities])

    placed = filled(bisect_left(rises, True, hi=len(rises) - 1, key=lambda rise: filled(rise) is not None))
    assert placed is not None
    return placed


def atom_needs(atom: Sequence[str]) -> str:
    """The start of the sentence that says what an atom needs."""
    shown = ", ".join(f"'{name}'" for name in atom[:3])
    more = f" and {len(atom) - 3} more" if len(atom) > 3 else ""
    one = f"the node {shown} needs"
    return one if len(atom) == 1 else f"the nodes {shown}{more} that must share a device need"


def needed_bytes(instance: Instance, placement: Placement, predicted: Timeline | None = None) -> Ints:
    """[D] bytes by `Problem.memory`: under (5-18), or the simulated peaks; each replica holds its stage.

    Args:
        predicted: of the placement; None: `Problem.simulator` is asked where peaks are needed.
    """
    problem = instance.problem
    if problem.memory == "static":
        return instance.totals(placement.all_stages).nbytes
    if predicted is None:
        assert problem.simulator is not None, "lifetimes are those of a schedule"
        predicted = problem.simulator(placement)
    return np.array([predicted.peak_bytes.get(name, 0) for name in instance.devices], np.int64)
