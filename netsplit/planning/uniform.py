"""The search for a uniform plan of many alike devices: data x tensor x pipeline, and all that goes with it.

    degrees, samples of a micro-batch, schedule ─► estimate of seconds and bytes, with as little recomputation
    and as few slices as fit ─► the promising ones simulated, one rank of each stage ─► the fastest that fits

An estimate is of sums over the operators of each stage, on a line through two sizes of micro-batches. What a
simulation says corrects the estimates of others: bytes of those that recompute alike, seconds of pipelines as
long under the same schedule.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Literal, Protocol, get_args

import numpy as np

from netsplit.cluster.cluster import Link
from netsplit.errors import ConfigError, InfeasibleError, NetSplitError
from netsplit.graph.ir import dtype_bytes
from netsplit.partition.common.instance import Floats
from netsplit.placement.parallelism import Parallelism, RecomputeName
from netsplit.placement.placement import ShardName
from netsplit.placement.sharding import PIECES
from netsplit.planning.folding import FoldedPlan
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.costs import saved_bytes
from netsplit.program.recomputation import recomputed_by_kind
from netsplit.program.schedules import SCHEDULES, Schedule
from netsplit.tables import nbytes

__all__ = ["ORDERS", "PlanMaker", "UniformSearch", "UniformTried"]

log = logging.getLogger(__name__)

ORDERS = {"1f1b": (1,), "interleaved_1f1b": (2, 3, 4), "zb_h1": (1,)}
"""Schedule -> stages of each group of devices."""
MOST_TENSOR = 8
MOST_SIZES = 8  # of micro-batches: those nearest to powers of two
LOOKED_AT, LONG = 8, 50
"""Samples, at most, at which operators are summed besides one; unless they take so many times as long as
their launches, and so as much longer with more samples."""
NEAR = 1.15  # times the best simulated: what is estimated to take longer is not simulated
ROOM = 1.1  # times the room, up to which an estimate of bytes may still fit
LEAST = 2**20  # bytes of a piece
KEPT_OF_AGAIN, WORKING = 0.04, 0.015
"""Fractions of what a backward needs: kept where all is computed again, and there for one piece."""
LEAST_TRIED, ENOUGH = 4, 12  # simulated however late it is; and that fit
HOPELESS_S, NEAREST = 1e9, 3  # of what seems not to fit: as many as are simulated where nothing does


class PlanMaker(Protocol):
    """What makes uniform plans of a step."""

    def folded(self, given: Parallelism, microbatches: int) -> FoldedPlan:
        """Not simulated. Raises `NetSplitError`: the step cannot be planned so."""

    def plan(self, given: Parallelism, schedule: Schedule) -> Plan:
        """Simulated; raises likewise."""


@dataclass(frozen=True)
class UniformTried:
    """A uniform plan that was simulated."""

    given: Parallelism
    schedule: Schedule  # with the micro-batches of the whole batch
    plan: Plan
    missing_bytes: int  # on the device that lacks most

    @property
    def iteration_s(self) -> float:
        return self.plan.iteration_s


@dataclass(frozen=True)
class _Promise:
    seconds: float
    given: Parallelism
    order: str
    size: int  # samples of a micro-batch


@dataclass(eq=False)
class UniformSearch:
    """One search, over all devices of a described cluster.

    Args:
        samples: of the whole batch.
        devices: of the cluster; `host`: of one of its hosts.
        limit_s: from the first simulation on, after which no more plans are simulated, if one fits.
        whole: why the batch is not cut; "": it may be.
        unreplicable: why there are no replicas; "": there may be.
    """

    maker: PlanMaker
    samples: int
    devices: int
    host: int
    open: AutoSchedule
    limit_s: float
    whole: str = ""
    unreplicable: str = ""
    until: float = float("inf")  # on ``time.perf_counter``
    tried: list[UniformTried] = field(default_factory=list)
    scale: dict[RecomputeName, float] = field(default_factory=dict)  # of estimated activations
    pace: dict[tuple[int, str, bool], float] = field(default_factory=dict)  # of seconds, by `_kind`
    refusal: NetSplitError | None = None

    def run(self) -> UniformTried:
        """The fastest that fits.

        Raises:
            InfeasibleError: none does; says what the nearest lacks.
            NetSplitError: the model cannot be planned so.
        """
        known, given = set[tuple[Parallelism, str, int]](), self.devices
        while self.devices > 1 and next(self._candidates(), None) is None:
            self.devices -= 1
        for _ in range(3 * ENOUGH):
            candidates = (each for each in self._candidates() if each[1:] not in known)
            best = min(candidates, default=None, key=lambda each: each[0])
            hopeless = best is not None and best[0] >= HOPELESS_S and len(self.tried) >= NEAREST
            if best is None or hopeless or self._done(best[0]):
                break
            known.add(best[1:])
            if not self.tried:
                self.until = time.perf_counter() + self.limit_s
            self._simulate(_Promise(*best))
        fitting = [each for each in self.tried if each.missing_bytes <= 0]
        if fitting:
            return min(fitting, key=lambda each: each.iteration_s)
        if not self.tried:
            raise self.refusal or ConfigError(
                f"no uniform plan of up to {given} devices divides a batch of {self.samples} samples as "
                "asked: give another batch, or leave schedule.microbatches open."
            )
        nearest = min(self.tried, key=lambda each: each.missing_bytes)
        raise InfeasibleError(
            f"no plan fits: the nearest, {nearest.given} under {nearest.schedule.name} with "
            f"{nearest.schedule.microbatches} micro-batches, lacks {nbytes(nearest.missing_bytes)} on a "
            "device: give more devices, or devices with more memory."
        )

    def _done(self, seconds: float) -> bool:
        fitting = [each.iteration_s for each in self.tried if each.missing_bytes <= 0]
        late = time.perf_counter() > self.until and len(self.tried) >= LEAST_TRIED
        return bool(fitting) and (late or len(fitting) >= ENOUGH or seconds > NEAR * min(fitting))

    def _simulate(self, each: _Promise) -> None:
        schedule = SCHEDULES[each.order]().with_microbatches(self.samples // each.size)
        try:
            plan = self.maker.plan(each.given, schedule)
        except NetSplitError as error:
            self.refusal = error
            log.debug("%s under %s: %s", each.given, each.order, error)
            return
        peaks, room = plan.simulated[1].peak_bytes, plan.problem.cluster.devices[0].capacity_bytes
        most = max(peaks.values())
        self.tried.append(UniformTried(each.given, schedule, plan, most - room))
        states, activations = self._bytes(each.given, each.order, each.size)
        at = int((states + activations).argmax())
        more = max(most - states[at], 0.1 * activations[at]) / max(activations[at], 1.0)
        self.scale[each.given.recompute] = more * self.scale.get(each.given.recompute, 1.0)
        key = self._kind(each.given, each.order)
        if each.seconds < HOPELESS_S:
            self.pace[key] = self.pace.get(key, 1.0) * plan.iteration_s / each.seconds
        log.info(
            "%s, %s, micro-batches of %d: %.4g s (%.4g s estimated), %s",
            each.given, each.order, each.size, plan.iteration_s, each.seconds, nbytes(most),
        )  # fmt: skip

    # Candidates.

    def _candidates(self) -> Iterator[tuple[float, Parallelism, str, int]]:
        """Candidates of all degrees, schedules and sizes, each with its estimated seconds."""
        for tensor, pipeline in product(self._divisors(self.host), self._divisors(self.devices)):
            data, rest = divmod(self.devices, tensor * pipeline)
            if rest or tensor > MOST_TENSOR or self.samples % data or (data > 1 and self.unreplicable):
                continue
            for order, counts in ORDERS.items():
                if self.open.schedules is not None and order not in self.open.schedules:
                    continue
                for chunks, size in product(counts, self._sizes(self.samples // data)):
                    if order != "1f1b" and pipeline == 1:
                        continue
                    local = self.samples // data // size
                    counts_open = not self._counts or local * data in self._counts
                    if (chunks > 1 and local % pipeline) or not counts_open:
                        continue
                    given = Parallelism(data, tensor, pipeline, sequence=tensor > 1, chunks=chunks)
                    yield from self._best_of(given, order, size)

    def _best_of(
        self, given: Parallelism, order: str, size: int
    ) -> Iterator[tuple[float, Parallelism, str, int]]:
        """The fastest of all levels of slices and of recomputation that may fit; where none may, the one with
        the fewest bytes, which is the later the more it lacks."""
        levels: tuple[ShardName | Literal["none"], ...] = ("none",)
        if self.open.shard == "auto":
            levels = ("none", *(get_args(ShardName) if given.data > 1 else ()))
        elif given.data > 1:
            levels = (self.open.shard,)
        again = get_args(RecomputeName) if self.open.recompute else ("none",)
        best: tuple[float, Parallelism] | None = None
        for shard, recompute in product(levels, again):
            each = replace(given, shard=shard, recompute=recompute)
            if (sums := self._sums(each)) is None:
                return
            lacks = float(np.add(*self._bytes(each, order, size)).max()) / (ROOM * sums.room)
            seconds = self._seconds(each, order, size) if lacks <= 1 else HOPELESS_S * lacks
            if best is None or seconds < best[0]:
                best = seconds, each
        if best is not None:
            yield (*best, order, size)

    @property
    def _counts(self) -> Sequence[int]:
        """Micro-batches of the whole batch, if not all numbers are open."""
        given = self.open.microbatches
        return [1] if self.whole else [given] if isinstance(given, int) else given or ()

    @classmethod
    def _sizes(cls, samples: int) -> list[int]:
        """Samples of a micro-batch, of so many of a replica."""
        divisors = cls._divisors(samples)
        return sorted({min(divisors, key=lambda n: max(n / 2**k, 2**k / n)) for k in range(MOST_SIZES)})

    @staticmethod
    def _divisors(number: int) -> list[int]:
        return [each for each in range(1, number + 1) if number % each == 0]

    # Estimates.

    def _sums(self, given: Parallelism) -> StageSums | None:
        """Sums over the operators of each group of devices; None: there is no such plan."""
        key = given.tensor, given.pipeline, given.chunks
        if key not in self._known:
            try:
                plain = Parallelism(1, *key[:2], sequence=given.sequence, chunks=given.chunks)
                self._known[key] = StageSums(self.maker.folded(plain, self.samples), self._nodes(plain))
            except NetSplitError as error:
                self.refusal, self._known[key] = error, None
        return self._known[key]

    def _nodes(self, plain: Parallelism) -> list[_NodeSums]:
        """Sums at one sample, and at several."""
        if plain.tensor not in self._of_nodes:
            alone = replace(plain, pipeline=1, chunks=1)
            sums = [_NodeSums(self.maker.folded(alone, self.samples))]
            more = next(n for n in (LOOKED_AT, 4, 2, 1) if self.samples % n == 0)
            if more > 1 and not sums[0].is_long:
                other = _NodeSums(self.maker.folded(alone, self.samples // more))
                sums += [other] if other.names == sums[0].names else []
            self._of_nodes[plain.tensor] = sums
        return self._of_nodes[plain.tensor]

    @cached_property
    def _of_nodes(self) -> dict[int, list[_NodeSums]]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[int, int, int], StageSums | None]:
        return {}

    def _bytes(self, given: Parallelism, order: str, size: int) -> tuple[Floats, Floats]:
        """[P] bytes of states, and of activations."""
        sums, d = self._sums(given), given.data
        assert sums is not None
        w, alpha, p = sums.weights, sums.alpha, given.pipeline
        states = {
            "none": alpha * w,
            "optimizer": 2 * w + (alpha - 2) * w / d,
            "gradients": 2 * w + (alpha - 2) * w / d,
            "parameters": alpha * w / d + 3 * w / PIECES,
        }[given.shard]
        local = self.samples // d // size
        flight = p - np.arange(p, dtype=float)
        if order == "interleaved_1f1b":
            flight = ((given.chunks - 1) * p + 2 * flight - 1) / given.chunks
        kept = sums.of(f"kept {given.recompute}", size) * np.minimum(flight, local)
        activations: Floats = kept + sums.of(f"working {given.recompute}", size)
        return np.asarray(states, np.float64), activations * self.scale.get(given.recompute, 1.0)

    def _seconds(self, given: Parallelism, order: str, size: int) -> float:
        """Seconds of an iteration."""
        sums, d, p = self._sums(given), given.data, given.pipeline
        assert sums is not None
        local = self.samples // d // size
        stages = sums.of("computing", size) + sums.of(f"again {given.recompute}", size)
        bubble = (p - 1) * float(stages.mean())
        if order == "zb_h1":
            bubble -= (p - 1) * float(sums.of("weights", size).mean())
        sending_s = self._sending_s(given, size * sums.sent) if p > 1 else 0.0
        seconds = local * max(float(stages.max()), given.chunks * sending_s) + max(bubble, 0.0) / given.chunks
        seconds += 2 * (p * given.chunks - 1) * sending_s
        step_s, whole = float(sums.weights.max()) * sums.step_s_per_byte, given.shard == "none"
        if d > 1:
            sum_s, gather_s = sums.collective_s(d)
            if whole:
                seconds += 2 * gather_s
            elif given.shard == "parameters":
                moving_s = local * (2 * gather_s + sum_s)
                seconds = max(seconds, moving_s) + moving_s / (PIECES * local)
            else:
                seconds += gather_s + sum_s * (0.3 if given.shard == "gradients" else 1.0)
        seconds += step_s if whole else step_s / d
        return seconds * self.pace.get(self._kind(given, order), 1.0)

    def _sending_s(self, given: Parallelism, sent: Floats) -> float:
        """Seconds of sending from a stage to the next, where that takes longest."""
        key, sums = (given.data, given.tensor, given.pipeline), self._sums(given)
        assert sums is not None
        if key not in self._links:
            folded = replace(sums.folded, given=replace(given, shard="none")).folded
            names = folded.names
            self._links[key] = [
                folded.links[p, q] for p, q in zip(names, [*names[1:], names[0]], strict=True)
            ]
        every = zip(self._links[key], sent, strict=True)
        return max(link.seconds(nbytes) for link, nbytes in every if nbytes)

    @cached_property
    def _links(self) -> dict[tuple[int, int, int], list[Link]]:
        return {}

    @staticmethod
    def _kind(given: Parallelism, order: str) -> tuple[int, str, bool]:
        """What errors of estimated seconds are alike for."""
        return given.pipeline, order, given.shard == "parameters"


class _NodeSums:
    """What the operators of a folded plan take, by name [N].

    Seconds of forward and backward ("computing"), of weights' gradients of these; by kind of recomputation
    seconds that it adds ("again full"), bytes from forward to backward, and those of one micro-batch while it
    is computed again.
    """

    def __init__(self, folded: FoldedPlan) -> None:
        graph = folded.graph
        self.size, self.names, trained = graph.batch_size, list(graph.nodes), graph.requires_backward
        nodes = folded.priced.of(folded.cluster.devices[0].kind).nodes
        back = [not trained.isdisjoint(node.outputs) for node in graph]
        forward = np.array([nodes[name].forward_s for name in graph.nodes])
        saved = saved_bytes(graph)[0]
        kept = np.array([float(saved.get(name, 0)) for name in graph.nodes])
        made = np.array([sum(graph.variables[k].nbytes for k in node.outputs if k) for node in graph], float)
        rates = folded.priced.of(folded.cluster.devices[0].kind).rates
        launch_s = 0.0 if rates is None else rates.launch_s
        self.is_long = forward.sum() > LONG * launch_s * len(forward)
        left = {k: each for k, each in graph.initializers.items() if each.requires_grad}
        self.widened = max((4 / min(dtype_bytes(each.dtype), 4) for each in left.values()), default=1.0)
        at = graph.position
        held = [sum(left.pop(k).nbytes for k in node.initializers if k in left) for node in graph]
        self.edges = (
            np.array(
                [
                    (at[variable.producer], at[v], n, variable.nbytes)
                    for n, variable in enumerate(graph.variables.values())
                    if variable.producer is not None
                    for v in variable.consumers
                ],
                np.int64,
            )
            .reshape(-1, 4)
            .T
        )  # producer, consumer, variable, bytes
        self.by_name = {
            "parameters": np.array(held, float),
            "computing": forward + np.array([nodes[name].backward_s for name in graph.nodes]) * back,
            "weights": np.array([nodes[name].weight_s for name in graph.nodes]) * back,
        }
        for name in get_args(RecomputeName):
            again, results = recomputed_by_kind(graph, False if name == "none" else name)
            anew, there = (np.array([v in each for v in graph.nodes]) for each in (again - results, results))
            self.by_name |= {
                f"again {name}": forward * anew,
                f"kept {name}": made * there + KEPT_OF_AGAIN * kept if again else kept,
                f"working {name}": WORKING * kept * bool(again),
            }


class StageSums:
    """Sums of the operators of each group of devices at any size, on a line through two.

    Attributes:
        weights: [P] bytes of parameters; `alpha`: of their states, per byte.
        sent: [P] bytes that go from each to others for one sample, of one of its chunks.
    """

    def __init__(self, folded: FoldedPlan, nodes: Sequence[_NodeSums]) -> None:
        self.folded, self.nodes = folded, nodes
        priced, device = folded.priced, folded.folded.devices[0]
        rank = {name: i for i, name in enumerate(folded.folded.names)}
        device_of = folded.placement.device_of
        self.stages = np.array([rank[device_of[name]] for name in folded.graph.nodes])
        self.room, self.alpha = device.capacity_bytes, priced.alpha
        self.step_s_per_byte = priced.of(device.kind).step_s_per_byte
        few = nodes[0]
        self.weights = np.bincount(self.stages, few.by_name["parameters"], minlength=len(rank))
        producer, consumer, variable, nbytes = few.edges
        ends = self.stages[producer], self.stages[consumer]
        crossing = np.flatnonzero(ends[0] != ends[1])
        once = np.unique(np.stack([variable[crossing], ends[1][crossing]]), axis=1, return_index=True)[1]
        sent = np.bincount(ends[0][crossing][once], nbytes[crossing][once], minlength=len(rank))
        self.sent = sent / (folded.given.chunks * few.size)
        self.widened = few.widened
        self.known: dict[tuple[str, int], Floats] = {}

    def of(self, name: str, size: int) -> Floats:
        """[P] at this many samples of a micro-batch."""
        few, many = self._at(name, 0), self._at(name, -1)
        least, most = self.nodes[0].size, self.nodes[-1].size
        part = (size - least) / (most - least) if most > least else 0.0
        return np.maximum(few + part * (many - few), 0.0) if most > least else few * size / least

    def _at(self, name: str, which: int) -> Floats:
        if (name, which) not in self.known:
            values = self.nodes[which].by_name[name]
            sums: Floats = np.bincount(self.stages, values, minlength=len(self.sent)).astype(np.float64)
            self.known[name, which] = sums
        return self.known[name, which]

    def collective_s(self, data: int) -> tuple[float, float]:
        """Seconds of summing gradients into slices, in single precision at least, and of gathering
        parameters, in pieces."""
        cluster, given = self.folded.cluster, self.folded.given
        group, most = cluster.names[: data * given.tensor : given.tensor], float(self.weights.max())
        pieces = min(max(most / LEAST, 1.0), PIECES)
        gather_s = cluster.group_seconds("all_gather", most / pieces, group, every=True)
        sum_s = cluster.group_seconds("reduce_scatter", self.widened * most / pieces, group, every=True)
        return pieces * sum_s, pieces * gather_s
