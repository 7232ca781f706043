"""Searching for a faster plan during training.

    ┌─► window measured ─► costs of the workers ─► changed? ─yes─► search ─► predicted shorter, and pays?
    │                                                 │ no                      │ no            │ yes
    │◄────────────────────────────────────────────────┴─────────────────────────┘             switch
    └◄── kept ◄── shorter ── window measured again ── longer ──► rolled back ──► next look twice as late

Source: FastT (Yi et al., Middleware 2020, section 4): refine costs from running iterations, activate a plan
with a shorter predicted iteration, and roll it back if it is measured to be longer. FastT activates a plan by
a checkpoint and a restart; here state moves between the workers.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from netsplit.errors import ConfigError, NetSplitError
from netsplit.partition import Auto, Dpos
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.planning.decide import verified
from netsplit.planning.fitting import fitted
from netsplit.planning.plan import Plan
from netsplit.planning.plan_change import PlacementChange, placement_change
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Timeline
from netsplit.training.adapt.switchable import why_unswitchable
from netsplit.training.adapt.worker_costs import WorkerCosts

__all__ = ["CHANGED", "Adapt", "Adaptation", "Change", "Decision", "Outcome", "Switched"]

log = logging.getLogger(__name__)


class Switched(NamedTuple):
    """What a change of plan took."""

    seconds: float
    nbytes: int  # that moved between workers


Change = Callable[[Plan], Switched]
"""Changes the plan between two iterations."""

_SETTLING = 2  # iterations after a switch, or at the beginning, that are not measured
_CHANGED = 0.15  # relative change of an iteration or a worker that triggers a search
_MOST_PAUSE = 4  # windows
_FRACTION = 0.1  # most of the time since the last search that a search may take
_LEAST_S = 0.1  # for a search, however short iterations are
_BOUND_S = 0.05  # for a plan's proven bound, which nothing here asks


@dataclass(frozen=True)
class Adapt:
    """When a training looks for another plan.

    `every`: iterations between measured windows; `window`: iterations in a window, whose medians count;
    `search_s`: most seconds of a search, which pauses training for at most a tenth of the time since the last
    one, or 0.1 s; `gain`: part of an iteration a plan must be predicted to save; `horizon`: iterations in
    which a change must pay off if the number left is unknown; None: as many as were trained, at least 100.
    """

    every: int = 20
    window: int = 5
    search_s: float = 2.0
    gain: float = 0.05
    horizon: int | None = None

    def __post_init__(self) -> None:
        for key, least in (("window", 1), ("every", self.window + 1), ("horizon", 1)):
            value = getattr(self, key)
            if not ((type(value) is int and value >= least) or (value is None and key == "horizon")):
                raise ConfigError(f"adapt.{key} is {value!r}: give a whole number of at least {least}.")
        if not (type(self.search_s) in (int, float) and self.search_s > 0):
            raise ConfigError(f"adapt.search_s is {self.search_s!r}: give more than 0 seconds.")
        if not (type(self.gain) in (int, float) and 0 <= self.gain < 1):
            raise ConfigError(
                f"adapt.gain is {self.gain!r}: give a fraction of an iteration, from 0 to below 1."
            )


Outcome = Literal["stayed", "on trial", "kept", "rolled back"]
CHANGED: tuple[Outcome, ...] = ("on trial", "kept")
"""Outcomes that leave the new plan in use."""


@dataclass(frozen=True)
class Decision:
    """One search for a plan with a shorter iteration, and its outcome; measured seconds are medians."""

    iteration: int  # trained before it, since the beginning of the whole training
    why: str  # what was observed, and why nothing changed if so
    outcome: Outcome
    predicted_before_s: float
    predicted_after_s: float | None = None
    measured_before_s: float = 0.0
    measured_after_s: float | None = None
    method: str = ""  # that found the other plan
    search_s: float = 0.0  # that looking for it took
    switch_s: float = 0.0  # for changes, including going back
    nbytes: int = 0  # that moved between workers
    change: PlacementChange | None = None  # from the plan that was there to the other; None where it stayed

    @property
    def changed(self) -> bool:
        return self.outcome in CHANGED

    def __str__(self) -> str:
        searched = f"searched for {1e3 * self.search_s:.0f} ms"
        if self.predicted_after_s is None or self.outcome == "stayed":
            took = f"{1e3 * self.measured_before_s:.4g} ms an iteration"
            return f"iteration {self.iteration}: kept the plan, {took}, {searched}: {self.why}"
        old = f"{1e3 * self.measured_before_s:.4g} ms ({1e3 * self.predicted_before_s:.4g} predicted)"
        predicted = f"{1e3 * self.predicted_after_s:.4g}"
        new = (
            f"{predicted} ms predicted"
            if self.measured_after_s is None
            else f"{1e3 * self.measured_after_s:.4g} ms ({predicted} predicted)"
        )
        changed = "" if self.change is None else f"; changed: {'; '.join(self.change.lines)}"
        return (
            f"iteration {self.iteration}: {self.outcome}, a plan by {self.method}: an iteration took {old} "
            f"with the old plan and {new} with the new one; {searched}, changed in "
            f"{1e3 * self.switch_s:.0f} ms: {self.why}{changed}"
        )


@dataclass(eq=False)
class Adaptation:
    """The costs of the workers, and the decisions, of one training.

    `switch_s` is what a change is taken to take before there was one; of the answers of `methods` the one
    that is predicted shortest counts.
    """

    settings: Adapt
    plan: Plan
    costs: WorkerCosts
    switch_s: float
    methods: tuple[Partitioner, ...] = ()
    decisions: list[Decision] = field(default_factory=list)
    before: int | None = None  # steps before the next, where epochs count them; None: batches are counted
    left: int | None = None  # steps after the next; None: nobody knows
    trained: int = 0  # iterations of the whole training, including those before a resumed checkpoint
    _since: int = 0  # iterations since the last switch, or window
    _wait: int = _SETTLING  # iterations until a window begins
    _pause: int = 1  # windows between looks: doubled after each failed trial
    _windows: int = 0  # since the last look
    _unlooked: int = 0  # iterations since then
    _window: list[Timeline] = field(default_factory=list)
    _looked_s: float | None = None  # median iteration at the last look
    _slowness: dict[str, float] = field(default_factory=dict)  # of workers, then
    _refused: list[Placement] = field(default_factory=list)
    _trial: tuple[Plan, int] | None = None  # the plan before the one on trial, and its decision's number
    _workers: object = None

    @classmethod
    def begin(cls, settings: Adapt, plan: Plan, placed_s: float) -> Adaptation:
        """Start with a plan just deployed; `placed_s`: seconds that took."""
        problem = plan.problem
        return cls(
            settings, plan, WorkerCosts.from_kinds(problem.graph, problem.cluster, problem.costs), placed_s
        )

    def __post_init__(self) -> None:
        self.methods = self.methods or (Dpos(), Auto(self.settings.search_s))

    @property
    def measuring(self) -> bool:
        return self._since >= self._wait

    @property
    def searched_s(self) -> float:
        return sum(each.search_s for each in self.decisions)

    def iteration(self, timeline: Timeline | None, workers: object, change: Change, batches: int) -> None:
        """Record an iteration of a whole batch that stepped, with its timeline if measured.

        Args:
            workers: others than the last time, where they were restarted.
            batches: trained so far, since the beginning of the whole training.
        """
        if workers is not self._workers:
            self._restarted()
            self._workers = workers
        self.trained = batches if self.before is None else self.before + 1
        self._unlooked += 1
        if timeline is None or not self.measuring:
            self._since += 1
            return
        self._window.append(timeline)
        if len(self._window) < self.settings.window:
            return
        window, self._window = self._window, []
        self._since, self._wait = 0, self.settings.every - self.settings.window
        self._windows += 1
        self.costs.observe(self.plan.simulated[0], window)
        measured_s = statistics.median(each.iteration_s for each in window)
        if self._trial is not None:
            self._judge(*self._trial, measured_s, change)
        elif self._windows >= self._pause and (why := self._reason(measured_s)) is not None:
            self._look(why, measured_s, change)

    def follow(self, plan: Plan) -> None:
        """Continue with a plan chosen elsewhere; keep measured costs where they still apply."""
        problem = plan.problem
        if problem.graph.nodes.keys() != self.plan.problem.graph.nodes.keys():
            self.costs = WorkerCosts.from_kinds(problem.graph, problem.cluster, problem.costs)
        if self._trial is not None:
            _, number = self._trial
            left = self.decisions[number]
            why = f"{left.why}; another plan replaced it before it was measured"
            self.decisions[number] = replace(left, why=why)
        self.plan, self._pause = plan, 1
        self._window, self._since, self._wait, self._windows = [], 0, _SETTLING, 0
        self._trial, self._looked_s = None, None

    def _restarted(self) -> None:
        """Discard measurements of the old workers."""
        self.costs = replace(
            self.costs, costs=self.costs.first, measured={name: set() for name in self.costs.measured}
        )
        self._window, self._since, self._wait = [], 0, _SETTLING
        self._trial, self._looked_s = None, None

    @property
    def horizon(self) -> int:
        """Iterations within which a change must pay off."""
        if self.left is not None:
            return self.left
        return self.settings.horizon or max(self.trained, 100)

    def _reason(self, measured_s: float) -> str | None:
        """What has changed since the last look; None if nothing has."""
        if self._looked_s is None:
            return "the first measured iterations"
        ratios = {name: self.costs.slowness(name) / before for name, before in self._slowness.items()}
        most = max(ratios, key=lambda name: abs(math.log(ratios[name])), default="")
        if most and _is_worth(ratios[most]):
            return f"{most} takes {ratios[most]:.2f} times as long as at the last check"
        ratio = measured_s / self._looked_s
        if _is_worth(ratio):
            return f"an iteration takes {ratio:.2f} times as long as at the last check"
        return None

    def _look(self, why: str, measured_s: float, change: Change) -> None:
        began = time.perf_counter()
        spent_s = measured_s * self._unlooked
        limit_s = min(self.settings.search_s, max(_FRACTION * spent_s, _LEAST_S))
        self._unlooked = 0
        self._note(measured_s)
        problem = self.plan.problem.moved_to(self.costs.cluster, self.costs.costs)
        program = self.plan.simulated[0]
        now_s = simulate(program, problem.cluster, problem.costs, peaks=False).iteration_s
        other, reason = self._search(replace(problem, time_limit_s=limit_s))
        search_s = time.perf_counter() - began
        decision = Decision(self.trained, why, "stayed", now_s, None, measured_s, search_s=search_s)
        if other is None:
            self._stay(replace(decision, why=f"{why}; {reason}"))
            return
        then_s = other.simulated[1].iteration_s
        decision = replace(decision, predicted_after_s=then_s, method=other.placement.method)
        saved_s = measured_s * (1 - then_s / now_s) if now_s > 0 else 0.0
        if then_s >= now_s * (1 - self.settings.gain):
            self._stay(replace(decision, why=f"{why}; no plan is predicted to gain enough"))
        elif saved_s * self.horizon <= self.switch_s:
            needs = f"the change would take longer than it saves in {self.horizon} iterations"
            self._stay(replace(decision, why=f"{why}; {needs}"))
        else:
            before = self.plan
            seconds, nbytes = self._change(other, change)
            changed = placement_change(before, other)
            tried = replace(decision, outcome="on trial", switch_s=seconds, nbytes=nbytes, change=changed)
            self._decide(tried)
            self._trial = before, len(self.decisions) - 1

    def _search(self, problem: Problem) -> tuple[Plan | None, str]:
        """The plan with the shortest predicted iteration that training can change to, or why none is."""
        answers: list[Plan] = []
        reason = "no method found another plan"
        problem = replace(problem, known=self.plan.placement, improved=None)
        for method in self.methods:
            try:
                placement = fitted(problem, method)
                plan = verified(problem, placement, bound_limit_s=_BOUND_S)
            except NetSplitError as error:
                reason = str(error).rstrip(".")
                continue
            if any(_same(placement, each) for each in (*self._refused, self.plan.placement)):
                reason = "the only plan found is the present one, or one that was rolled back"
            elif (refused := why_unswitchable(self.plan, plan)) is not None:
                reason = refused
            else:
                answers.append(plan)
        best = min(answers, key=lambda each: each.simulated[1].iteration_s, default=None)
        return best, reason

    def _judge(self, before: Plan, number: int, measured_s: float, change: Change) -> None:
        """Keep the new plan if it is faster; else go back if that pays off."""
        self._trial = None
        decision = replace(self.decisions[number], measured_after_s=measured_s)
        longer_s = measured_s - decision.measured_before_s
        if longer_s <= 0:
            self._pause = 1
            self._note(measured_s)
            self.decisions[number] = replace(decision, outcome="kept")
        elif longer_s * self.horizon <= self.switch_s:
            why = f"{decision.why}; it is slower, but too few iterations are left to go back"
            self.decisions[number] = replace(decision, outcome="kept", why=why)
        else:
            self._refused.append(self.plan.placement)
            self._pause = min(2 * self._pause, _MOST_PAUSE)
            seconds, nbytes = self._change(before, change)
            seconds, nbytes = decision.switch_s + seconds, decision.nbytes + nbytes
            rolled = replace(decision, outcome="rolled back", switch_s=seconds, nbytes=nbytes)
            self.decisions[number] = rolled
        log.info("%s", self.decisions[number])

    def _change(self, plan: Plan, change: Change) -> tuple[float, int]:
        seconds, nbytes = change(plan)
        self.plan, self.switch_s = plan, seconds
        self._since, self._wait, self._windows = 0, _SETTLING, 0
        return seconds, nbytes

    def _note(self, measured_s: float) -> None:
        self._looked_s, self._windows = measured_s, 0
        self._slowness = {name: self.costs.slowness(name) for name in self.costs.measured}

    def _stay(self, decision: Decision) -> None:
        self._pause = min(2 * self._pause, _MOST_PAUSE)
        self._decide(decision)

    def _decide(self, decision: Decision) -> None:
        self.decisions.append(decision)
        log.info("%s", decision)


def _is_worth(ratio: float) -> bool:
    """Whether this ratio is a relevant change."""
    return max(ratio, 1 / ratio) - 1 > _CHANGED


def _same(a: Placement, b: Placement) -> bool:
    return (a.device_of, a.replicas, a.recomputed) == (b.device_of, b.replicas, b.recomputed)
