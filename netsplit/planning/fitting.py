"""Placements whose simulated peaks fit, from methods that count bytes linearly.

    method, with a limit for each device ──► placement ──► simulated peaks
          ▲                                                     │
          └── capacity * count / peak of each device ◄──────────┘   until the peaks fit

Limits are in the method's own count of bytes (`Problem.memory_model`). If the first placement of a method
with a portfolio (`auto`) does not fit, each of its methods is fitted alone, and the next round starts from
the best that fits.

`schedule.recompute=auto` does this without recomputation, then with the least recomputation that makes each
placement fit (the first time without limits), and takes the better. If nothing fits, it recomputes all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from netsplit.errors import InfeasibleError, ModelSizeError, TimeLimitError
from netsplit.graph.quotient import topological_priority
from netsplit.partition import METHODS
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import Partitioner, fill_in_order, read_bytes
from netsplit.placement.placement import BOUND_FOR, Placement, SolverReport
from netsplit.planning.recomputation import nearest_recomputed

__all__ = ["fitted", "nearest_fill"]

_ROUNDS = 8
_EVENED = 5  # fills of as many devices, each evening out the peaks of the one before
_WORTH = 1.02  # a limit that rises this much is worth another round
_LITTLE = 0.1  # of the time limit, for rounds after it while nothing fits
_LESS = 0.97  # of the last limit, at most, after a placement that did not fit
_ROOM = 2**62  # bytes: more than any
_SAFE = 0.995  # of what the last ratio allows, as the next one may differ


def fitted(problem: Problem, partitioner: Partitioner, until: float = float("inf")) -> Placement:
    """The method's placement, fitted to the capacities by simulated peaks.

    A method that ignores capacities is run once, with recomputation where that makes its placement fit.

    Args:
        until: deadline of the rounds, on ``time.perf_counter``.

    Raises:
        InfeasibleError: no placement of the method fits; says what is missing, and what would be enough.
        ModelSizeError: the method's own model would be too large.
    """
    if problem.memory == "static":
        return partitioner.partition(problem)
    if partitioner.respects_capacity:
        if _recomputes(problem):
            return _best_of_both(problem, partitioner, until)
        return _Fitting(problem, partitioner, last=until).run()
    placement = partitioner.partition(problem)
    if _recomputes(problem):
        again, peaks = nearest_recomputed(problem.rewritten(placement.rewrites), placement)
        if all(nbytes <= problem.cluster.device(name).capacity_bytes for name, nbytes in peaks.items()):
            return again
    return placement


def _recomputes(problem: Problem) -> bool:
    """Whether planning chooses what is recomputed."""
    simulator = problem.simulator
    if simulator is None or not simulator.training or problem.memory != "lifetimes":
        return False
    return simulator.schedule.recompute == "auto"


def nearest_fill(problem: Problem) -> Placement:
    """The nearest to fit of fills in order of one, two, four, ... devices, with peaks evened out."""
    return _Fitting(problem, METHODS["single"]())._nearest_fill()[0]


def _best_of_both(problem: Problem, partitioner: Partitioner, until: float) -> Placement:
    """The better of keeping everything and of recomputing where devices lack room."""
    limit_s = problem.time_limit_s or partitioner.time_limit_s
    kept = _Fitting(problem, partitioner, last=until)
    if not kept.binds:
        return kept.run()
    halved = replace(problem, time_limit_s=None if limit_s is None else limit_s / 2)
    answers = []
    for anew in (False, True):
        fitting = _Fitting(halved, partitioner, anew, until)
        try:
            answers.append(fitting.run())
        except (ModelSizeError, TimeLimitError):
            if anew and not answers:
                raise
        except InfeasibleError:
            if anew and not answers:
                return _of_everything(fitting)
    return min(answers, key=lambda answer: problem.objective.score_s(problem, answer))


def _of_everything(fitting: _Fitting) -> Placement:
    """The method's placement with all recomputed, then with as little as makes it fit."""
    simulator = fitting.problem.the_simulator
    anew = replace(simulator, schedule=simulator.schedule.recomputing(True))
    every = _Fitting(replace(fitting.problem, simulator=anew), fitting.partitioner, last=fitting.last)
    placement = None
    try:
        placement = every.run()
    except (InfeasibleError, ModelSizeError, TimeLimitError):
        if every.least is not None:
            placement = every.least[0]
    if placement is not None:
        placement, peaks = fitting._fit(_unproven(placement))
        if fitting._missing(peaks) <= 0:
            return placement
        fitting._note(placement, peaks)
    raise fitting._infeasible()


@dataclass
class _Fitting:
    problem: Problem
    partitioner: Partitioner
    anew: bool = False  # activations may be recomputed
    last: float = float("inf")  # on ``time.perf_counter``
    allowed: dict[str, float] = field(init=False)  # device -> its limit, in the method's count
    least: tuple[Placement, dict[str, int]] | None = None  # the nearest to fit, and its peaks
    best: Placement | None = None
    best_s: float = float("inf")
    refusal: InfeasibleError | None = None  # the method's own

    def __post_init__(self) -> None:
        self.capacity = {each.name: each.capacity_bytes for each in self.problem.cluster.devices}
        self.allowed = {name: float(nbytes) for name, nbytes in self.capacity.items()}
        self.total = self.problem.memory_model.total_bytes
        self.limit_s = self.problem.time_limit_s or self.partitioner.time_limit_s
        self.until = None if self.limit_s is None else time.perf_counter() + self.limit_s

    @property
    def binds(self) -> bool:
        """Whether the limits exclude any placement."""
        return min(self.allowed.values(), default=0.0) < self.total

    def run(self) -> Placement:
        if self.binds:
            nearest, peaks = self._nearest_fill()
            # A packing of whole operators that does not fit says nothing of parts.
            if self._missing(peaks) <= 0 or not self.partitioner.cuts_operators(self.problem):
                self._learn(nearest, peaks)
        if self.anew:
            self._as_if_there_were_room()
        for asked in range(_ROUNDS):
            if asked == 1 and self.best is None:
                self._ask_portfolio()
            if time.perf_counter() > self.last:
                break
            bound = self.binds
            try:
                placement = self.partitioner.partition(self._asked())
            except InfeasibleError as refusal:
                self.refusal = refusal
                if self.best is not None or not (self._is_nearer(refusal) and self.binds):
                    break
                self.allowed = {name: 1.25 * nbytes for name, nbytes in self.allowed.items()}
                continue
            except ModelSizeError:  # of groups that were doubled where what is told is too tight for them
                if self.best is None:
                    raise
                break
            if not self._again(_unproven(placement) if bound else placement):
                break
            if self.best is not None and self.until is not None and time.perf_counter() > self.until:
                break
        if self.best is None and time.perf_counter() > self.last:
            raise TimeLimitError(f"{self.partitioner.name} found no placement that fits within its time.")
        if self.best is None:
            raise self._infeasible()
        return self.best

    def _ask_portfolio(self) -> None:
        """Start from the best of its methods that respect capacities, each fitted alone."""
        half_s = self._half_s()
        last = self.last if half_s is None else min(self.last, time.perf_counter() + half_s)
        problem, best = replace(self.problem, time_limit_s=half_s), None
        for method in self.partitioner.portfolio(problem):
            if not method.respects_capacity or time.perf_counter() > last:
                continue
            try:
                placement = _Fitting(problem, method, self.anew, last).run()
            except (InfeasibleError, ModelSizeError, TimeLimitError):
                continue
            seconds = problem.objective.score_s(problem, placement)
            if seconds < self.best_s:
                best, self.best_s = placement, seconds
        if best is not None:
            notes = {**best.report.notes, "found_by": best.method}
            report = replace(best.report, notes=notes)
            self.best = _unproven(replace(best, method=self.partitioner.name, report=report))
            self._learn(best, self._peaks(best))

    def _as_if_there_were_room(self) -> None:
        """The method's placement without limits, with recomputation."""
        devices = [
            replace(each, capacity_bytes=max(each.capacity_bytes, self.total))
            for each in self.problem.cluster.devices
        ]
        cluster = replace(self.problem.cluster, devices=tuple(devices))
        asked = replace(self._without_peaks(), cluster=cluster, time_limit_s=self._half_s())
        try:
            placement = self.partitioner.partition(asked)
        except (InfeasibleError, ModelSizeError):
            return
        placement, peaks = self._fit(_unproven(placement))
        self._note(placement, peaks)
        if self._missing(peaks) <= 0:
            self.best = placement
            self.best_s = self.problem.objective.score_s(self.problem, placement)

    def _without_peaks(self) -> Problem:
        """The problem without capacities in its simulator, as recomputation can lower the peaks."""
        if not self.anew:
            return self.problem
        simulator = self.problem.the_simulator
        devices = tuple(replace(each, capacity_bytes=_ROOM) for each in simulator.cluster.devices)
        free = replace(simulator.cluster, devices=devices)
        return replace(self.problem, simulator=simulator.moved_to(free, simulator.costs))

    def _asked(self) -> Problem:
        """The problem with the limits, and half of the time left, where they bind."""
        if not self.binds and min(self.capacity.values(), default=0) >= self.total:
            return self.problem
        cluster = self.problem.cluster
        devices = [replace(each, capacity_bytes=int(self.allowed[each.name])) for each in cluster.devices]
        reduced = replace(cluster, devices=tuple(devices))
        if not self.binds:  # the count is above the peaks, as what is offloaded counts in it
            return replace(self.problem, cluster=reduced)
        known = self.best
        if known is None and self.least is not None and self._missing(self.least[1]) <= 0:
            known = self.least[0]
        if known is not None:
            known = replace(known, recomputed=frozenset())
        return replace(self._without_peaks(), cluster=reduced, time_limit_s=self._half_s(), known=known)

    def _half_s(self) -> float | None:
        """Half of the seconds left; a little if none is left and nothing fits."""
        if self.limit_s is None or self.until is None:
            return None
        return max(_LITTLE * self.limit_s, self.until - time.perf_counter()) / 2

    def _again(self, placement: Placement) -> bool:
        """Whether to ask once more after this placement."""
        placement, peaks = self._fit(placement)
        bound, before = self.binds, self.allowed
        if self._missing(peaks) > 0:
            self._note(placement, peaks)
            self._learn(placement, peaks)
            # Limits at least this much lower rule out the same placement.
            self.allowed = {name: min(held, _LESS * before[name]) for name, held in self.allowed.items()}
            return True
        if self.best is not None or bound:
            seconds = self.problem.objective.score_s(self.problem, placement)
            if seconds >= self.best_s:
                return False
            self.best_s = seconds
        self.best = placement
        if not bound:
            return False
        self._learn(placement, peaks)
        return any(
            before[name] < self.total and self.allowed[name] > _WORTH * before[name] for name in before
        )

    def _learn(self, placement: Placement, peaks: Mapping[str, int]) -> None:
        """Set each limit by how many bytes of the count made a byte of the peak."""
        instance = Instance.of(self.problem.rewritten(placement.rewrites))
        held = instance.totals(placement.all_stages).nbytes
        counted = {name: int(nbytes) for name, nbytes in zip(instance.devices, held, strict=True) if nbytes}
        ratios = {name: nbytes / peaks[name] for name, nbytes in counted.items() if peaks.get(name)}
        usual = sum(ratios.values()) / len(ratios) if ratios else 1.0
        self.allowed = {
            name: _SAFE * nbytes * ratios.get(name, usual) for name, nbytes in self.capacity.items()
        }
        if self._missing(peaks) <= 0:
            for name, nbytes in counted.items():  # what fitted stays allowed
                self.allowed[name] = max(self.allowed[name], float(nbytes))

    def _nearest_fill(self) -> tuple[Placement, dict[str, int]]:
        """The nearest to fit of fills in order of one, two, four, ... devices, with peaks evened out."""
        devices = self.problem.cluster.devices
        counts = {min(2**i, len(devices)) for i in range(len(devices).bit_length() + 1)}
        for count in sorted(counts):
            parts = {each.name: float(each.capacity_bytes) for each in devices[:count]}
            for _ in range(_EVENED if count > 1 else 1):
                if self.least is not None and time.perf_counter() > self.last:
                    break
                placement = self._filled(parts)
                peaks = self._peaks(placement)
                self._note(placement, peaks)
                for name in parts:
                    parts[name] *= self.capacity[name] / max(peaks.get(name, 0), 0.5 * self.capacity[name])
        assert self.least is not None
        self._note(*self._fit(self.least[0]))
        return self.least

    def _filled(self, parts: Mapping[str, float]) -> Placement:
        """The fill in order with the least common multiple of these parts, to within a hundredth."""
        problem, low, high = self.problem, 0.0, 1.0
        wanted = [parts.get(device.name, 0.0) for device in problem.cluster.devices]
        device_of = None
        while device_of is None:
            high *= 2
            device_of = fill_in_order(problem, [int(high * part) for part in wanted])
        while high - low > 0.01 * high:
            middle = (low + high) / 2
            trial = fill_in_order(problem, [int(middle * part) for part in wanted])
            if trial is None:
                low = middle
            else:
                device_of, high = trial, middle
        order = topological_priority(problem.graph, problem.graph.position)
        return Placement("an in-order fill", device_of, order, SolverReport("heuristic", 0.0))

    def _note(self, placement: Placement, peaks: dict[str, int]) -> None:
        if self.least is None or self._missing(peaks) < self._missing(self.least[1]):
            self.least = placement, peaks

    def _is_nearer(self, refusal: InfeasibleError) -> bool:
        """Note the placement that a method calls nearest to fit; False if it is not nearer."""
        if not isinstance(refusal.nearest, Placement):
            return True
        before = self.least
        self._note(*self._fit(refusal.nearest))
        return self.least is not before

    def _missing(self, peaks: Mapping[str, int]) -> int:
        return max((peaks[name] - self.capacity[name] for name in peaks), default=0)

    def _fit(self, placement: Placement) -> tuple[Placement, dict[str, int]]:
        """The placement, recomputed as needed where planning may, and its peaks."""
        if self.anew:
            return nearest_recomputed(self.problem.rewritten(placement.rewrites), placement)
        return placement, self._peaks(placement)

    def _peaks(self, placement: Placement) -> dict[str, int]:
        return dict(self.problem.the_simulator(placement).peak_bytes)

    def _infeasible(self) -> InfeasibleError:
        """The error that names the nearest plan, what it lacks, and what would be enough."""
        if self.least is None:  # limits did not bind: the method has its own reason
            assert self.refusal is not None
            return self.refusal
        peaks = self.least[1]
        name = max(peaks, key=lambda device: peaks[device] - self.capacity[device])
        missing = self._missing(peaks)
        if missing <= 0:
            finds = f"{self.partitioner.name} finds no placement that fits"
            return InfeasibleError(f"{finds}, though {self.least[0].method} does: use auto.")
        same, cluster = len(set(self.capacity.values())) == 1, self.problem.cluster.name
        enough = read_bytes(peaks[name], True) if same else f"{read_bytes(missing, True)} more"
        return InfeasibleError(
            f"{self.partitioner.name} finds no placement that fits on cluster '{cluster}': the "
            f"best packing found peaks at {read_bytes(peaks[name])} on '{name}', {read_bytes(missing)} "
            f"over its limit of {read_bytes(self.capacity[name])}. Give each device {enough} (or use more "
            "devices, a smaller micro-batch, an optimizer with less state, or a schedule with recompute or "
            f"fewer micro-batches in flight{'' if self.refusal is None else self.refusal.remedy})."
        )


def _unproven(placement: Placement) -> Placement:
    """The placement without the method's proof, which holds for its limits only."""
    report = placement.report
    notes = {key: value for key, value in report.notes.items() if key != BOUND_FOR}
    return replace(placement, report=replace(report, notes=notes))
