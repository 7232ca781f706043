"""The frame of every method: timing, the check of the capacities, the placement and its report.

And the answers of many methods, judged by one measure.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final, get_args

import numpy as np

from netsplit import rewrite
from netsplit.errors import ConfigError, ModelSizeError, NetSplitError, TimeLimitError, brief
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import check_capacity
from netsplit.partition.common.instance import Instance, Ints
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import BOUND_FOR, Placement, SolverReport, Stage, Status
from netsplit.placement.priority import topological_priority
from netsplit.rewrite.records import Rewrite

__all__ = ["Candidate", "Choice", "Partitioner", "candidates", "order_of"]

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
