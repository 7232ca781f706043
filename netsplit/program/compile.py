"""From a placed graph and a schedule to a program.

    graph + placement ──► insert_transfers ──► cut_segments ──► one walk over schedule order ──► check
                                                    └─ in parts, where some nodes are recomputed ─┘

The walk emits a transfer's Send and Recv together, right after the computation that makes the
tensor. All devices' lists therefore agree with one global order of transfers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from netsplit.cluster.cluster import Cluster
from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph.ir import TRANSFER, Graph
from netsplit.graph.operators import unchanging
from netsplit.placement.placement import Placement
from netsplit.placement.sharding import Bundle, ranked
from netsplit.profile.costs import Costs
from netsplit.program.check import check_progress
from netsplit.program.instructions import (
    Backward,
    BackwardPart,
    Forward,
    Gather,
    Instruction,
    Program,
    Recv,
    Reduce,
    Reduction,
    Scatter,
    Segment,
    Send,
    Step,
    copies_of,
    origin,
)
from netsplit.program.recomputation import (
    SegmentParts,
    in_flight,
    in_parts,
    recomputed_by_kind,
    whole,
    without_idle_recomputation,
)
from netsplit.program.schedules import Compute, Phase, Schedule
from netsplit.program.segments import (
    cut_segments,
    first_of_stages,
    in_stages,
    makers_of,
    pipeline_of,
    pooled_in,
    segments_together,
    timed_pipeline,
    trained_segments,
)
from netsplit.program.transfers import BundleTurns, Work, bundles_of, insert_transfers

__all__ = ["compile_orders", "compile_program"]

_PART: dict[Phase, BackwardPart] = {"backward": "whole", "input": "input", "weight": "weight"}


def compile_program(
    graph: Graph,
    placement: Placement,
    cluster: Cluster,
    schedule: Schedule,
    training: bool = True,
    shared_norm: bool = False,
    costs: Costs | None = None,
) -> Program:
    """Compile; without `training` the program has forwards only.

    Args:
        graph: after the placement's rewrites.
        shared_norm: the optimiser needs the norm of all devices' gradients before it steps.
        costs: of the nodes, for schedules that go by durations (`Pipeline.times`).

    Raises:
        ConfigError: `shared_norm`, shards, uneven turns, or copies of a weight on several devices, with a
            schedule whose devices step on their own; an exchange that does not reach all readers, or of a
            weight between replicas.
        DeadlockError: the instructions would wait in a circle (see `check_progress`).
    """
    return next(compile_orders(graph, placement, cluster, schedule, training, shared_norm, costs))


def compile_orders(
    graph: Graph,
    placement: Placement,
    cluster: Cluster,
    schedule: Schedule,
    training: bool = True,
    shared_norm: bool = False,
    costs: Costs | None = None,
    like: Sequence[Bundle] = (),
) -> Iterator[Program]:
    """As `compile_program`, a program for each of `Schedule.orders`.

    Args:
        like: what is in slices by the program that the devices train by, where this is of another batch.
    """
    device_of, exchanges, shards = placement.device_of, placement.exchanges, placement.shards
    cuts = (*placement.cuts, *(name for each in shards for name in each.cuts))
    cuts = (*cuts, *first_of_stages(device_of, placement.priority, placement.begins))
    replicas, in_turn = placement.replicas, placement.turns
    groups = dict(replicas | placement.alike)
    placed, devices = insert_transfers(graph, device_of, exchanges)
    segments = tuple(
        replace(segment, replicas=replicas.get(segment.device, ()), turns=in_turn.get(segment.device, ()))
        for segment in cut_segments(placed, devices, placement.priority, schedule.fine_segments, cuts)
    )
    once = not training or schedule.update_every is None  # else weights have several versions
    same = unchanging(graph) if once else frozenset()
    lasting = _copies_of(placed, same)
    for exchange in exchanges:  # lasting values go to each replica with its first micro-batch
        if exchange.variable in same and not {p for hop in exchange.hops for p in hop}.isdisjoint(groups):
            raise ConfigError(
                f"'{exchange.variable}', computed from weights, is exchanged through a stage with replicas: "
                "send it to each reader (schedule.exchange=send_receive)."
            )
    recomputed, kept = recomputed_by_kind(placed, schedule.recompute if training else False)
    recomputed = recomputed or placement.recomputed
    draft = Program(
        placed, devices, tuple(cluster.names), segments, {}, (), schedule.microbatches, training, groups,
        dict(in_turn), exchanges, lasting=lasting, kept_results=kept,
    )  # fmt: skip
    copied = _copied(draft) if training else ()
    if schedule.update_every is not None:
        _check_own_steps(schedule, shared_norm, placement, copied)
    pipeline = pipeline_of(placed, segments, training)
    if costs is not None:
        pipeline = timed_pipeline(pipeline, placed, segments, cluster, costs, schedule, lasting, kept)
    stages = segments_together(segments, placement.priority, placement.begins)
    pipeline = in_stages(pipeline, stages)
    for order in schedule.orders(pipeline):
        parts = whole(segments)
        if training and recomputed:
            most = in_flight(order, pipeline)
            flights = {s: most[number] for number, stage in enumerate(stages) for s in stage}
            by_kind = schedule.recompute in ("selective", "full")
            parts = in_parts(placed, segments, recomputed, flights, by_kind)
        parts = parts.in_stages(stages)
        bundles = bundles_of(placed, parts.segments, draft.holders, shards, draft.devices, like)
        pooled = pooled_in(placed, parts.segments, same) if training else frozenset[str]()
        own = replace(draft, segments=parts.segments, bundles=bundles, pooled=pooled)
        yield _Compiler(own, parts, schedule, shared_norm, copied).program(order)


def _copied(program: Program) -> tuple[tuple[str, ...], ...]:
    """Sets of devices that hold copies of the same parameters and sum their gradients."""
    held = [program.holders[k] for k in program.trained]
    several = (each for each in held if len(each) > 1 and each not in program.replicas.values())
    return tuple(dict.fromkeys(ranked(devices, program.devices) for devices in several))


def _check_own_steps(
    schedule: Schedule,
    shared_norm: bool,
    placement: Placement,
    copied: Collection[tuple[str, ...]],
) -> None:
    """Raises ConfigError for what needs a common step under an asynchronous schedule."""
    uneven = any(
        {*placement.turns[first][start : start + len(each)]} != {*each}
        for first, each in placement.replicas.items()
        for start in range(0, len(placement.turns[first]), len(each))
    )
    needs = {
        "clip_norm and float16 need": shared_norm,
        "states in slices (shard) need": bool(placement.shards),
        "copies of a weight on several devices need": bool(copied),
        "uneven turns of replicas need": uneven,
    }
    for what in (each for each, needed in needs.items() if needed):
        raise ConfigError(
            f"{what} the gradients of all devices at once, but under {schedule.name} every device steps on "
            "its own: leave them out, or choose a synchronous schedule."
        )


@dataclass(eq=False)
class _Compiler:
    """Builds every device's list; counts what each gradient and step still waits for."""

    draft: Program  # without instructions
    parts: SegmentParts
    schedule: Schedule
    shared_norm: bool
    copied: Sequence[tuple[str, ...]]  # devices that hold copies of the same parameters

    def __post_init__(self) -> None:
        draft = self.draft
        self.graph, self.device_of, self.segments = draft.graph, draft.device_of, draft.segments
        self.names, self.replicas, self.bundles = draft.devices, draft.replicas, draft.bundles
        self.lists: dict[str, list[Instruction]] = {name: [] for name in self.names}
        self.order: list[str] = []
        self.tag = 0
        self.maker = makers_of(self.segments)
        self.trained = trained_segments(self.graph, self.segments) if draft.training else frozenset()
        self.left: dict[tuple[str, int | str], int] = {}
        """("k@q", micro-batch; of one that lasts, device) -> gradients of it still to come there."""
        self.sent: set[tuple[str, str]] = set()  # lasting copies, with their device
        self.readers = Counter(k for s in self.trained for k in self.segments[s].inputs)  # with a backward
        self.returning = self._returning()
        self.rank = {name: p for p, name in enumerate(self.names)}
        self.copies: dict[str, list[str]] = {}  # see `_copies`
        self.waiting = Counter(
            (self.segments[s].device, self._update(self.segments[s], i))
            for s in self.trained
            for i in range(draft.microbatches)
        )
        self.steps: Counter[str] = Counter()
        self.sharded = {frozenset(each.devices) for each in self.bundles}

    def program(self, order: Sequence[Compute]) -> Program:
        """The program in this order of computation."""
        work = self._work(order)
        turns = BundleTurns(self.bundles, self.segments, work, self.trained)
        for at, (s, i, part) in enumerate(work):
            for b in turns.gathered(at):
                self._collect(Gather, b)
            if part is None:
                self.forward(s, i)
            else:
                self.backward(s, i, part)
            for b in turns.summed(at):
                self._collect(Scatter, b)
        if lost := next((key for key, left in self.left.items() if left), None):
            raise NetSplitError(
                f"the gradient of '{lost[0]}' would wait for another that never comes, and be lost: this is "
                "a bug in NetSplit; schedule.exchange=send_receive avoids it."
            )
        if self.draft.training and self.schedule.update_every is None:
            self.step_all()
        lists = {name: without_idle_recomputation(each) for name, each in self.lists.items()}
        program = replace(self.draft, instructions=lists, order=tuple(self.order))
        check_progress(program)
        return program

    def _work(self, order: Sequence[Compute]) -> list[Work]:
        """The order's tasks by part of a segment, part after part on replicas that sum together."""
        work: list[Work] = []
        at = 0
        while at < len(order):
            phase, s, i = order[at]
            several, homes, at = [i], {self.segments[self.parts.of[s][0]].on(i)}, at + 1
            while self.bundles and at < len(order) and order[at][:2] == (phase, s):
                home = self.segments[self.parts.of[s][0]].on(order[at][2])
                if home in homes:
                    break
                homes.add(home)
                several.append(order[at][2])
                at += 1
            if phase == "forward":
                work += [(part, each, None) for part in self.parts.of[s] for each in several]
            elif self.draft.training:
                parts = [part for part in reversed(self.parts.of[s]) if part in self.trained]
                work += [(part, each, _PART[phase]) for part in parts for each in several]
        return work

    def forward(self, s: int, i: int) -> None:
        segment = self.segments[s]
        home = segment.on(i)
        version = min(self.schedule.version(i, self.steps[home]), self.steps[home])
        again = self.schedule.recompute is True or s in self.parts.again
        self._emit(home, Forward(s, i, again and s in self.trained, version))
        for k in segment.outputs:
            self._send_copies(k, k, home, i)

    def _send_copies(self, k: str, read: str, home: str, i: int) -> None:
        """Send copies of variable k, which the device has as `read`; receivers may hand it on."""
        reached = []
        for copy in self._copies(read):
            to = self.draft.on(self.device_of[copy], i)
            reached.append((copy, to))
            if copy in self.draft.lasting:
                if (copy, to) in self.sent:
                    continue
                self.sent.add((copy, to))
            self._transfer(copy, k, i, home, to, gradient=False)
        for copy, to in reached:
            self._send_copies(k, copy, to, i)

    def backward(self, s: int, i: int, part: BackwardPart) -> None:
        segment = self.segments[s]
        home = segment.on(i)
        self._emit(home, Backward(s, i, part, self._update(segment, i)))
        if part != "weight":
            self._send_gradients(segment, i)
        if part != "input":
            self._complete(segment, i)

    def _send_gradients(self, segment: Segment, i: int) -> None:
        home = segment.on(i)
        batches = sum(segment.on(j) == home for j in range(self.schedule.microbatches))
        for k in segment.inputs:
            if origin(self.graph, k) != k and k in self.graph.requires_backward:
                self._one_gradient_less(k, home, i, batches)

    def _one_gradient_less(self, copy: str, home: str, i: int, batches: int) -> None:
        """Count a gradient of a copy on a device; after the last, send their sum back."""
        own, handed = self.readers[copy], self.returning[copy]
        lasts = copy in self.draft.lasting
        key, count = ((copy, home), batches * own + handed) if lasts else ((copy, i), own + handed)
        left = self.left[key] = self.left.get(key, count) - 1
        if left:
            return
        read = self.graph.nodes[copy].inputs[0]
        source = origin(self.graph, copy)
        if read == source:
            self._transfer(copy, source, i, home, self.segments[self.maker[source]].on(i), gradient=True)
            return
        between = self.draft.on(self.device_of[read], i)
        self._transfer(copy, source, i, home, between, gradient=True)
        self._one_gradient_less(read, between, i, batches)

    def _returning(self) -> Counter[str]:
        returning: Counter[str] = Counter()
        carrying = self.graph.requires_backward
        for node in reversed(list(self.graph)):
            copy = node.name
            if copy in carrying and node.op == TRANSFER and (self.readers[copy] or returning[copy]):
                returning[node.inputs[0]] += 1
        return returning

    def _complete(self, segment: Segment, i: int) -> None:
        """Step after the step's last backward, on all replicas together."""
        home, number = segment.device, self._update(segment, i)
        self.waiting[home, number] -= 1
        if not self.waiting[home, number] and self.schedule.update_every is not None:
            self._reduce(home, number)
            self._step(home, number)

    def step_all(self) -> None:
        """Step at the end, as forwards without backwards read the earlier weights, too."""
        others = {name for each in self.replicas.values() for name in each[1:]}
        training = {self.segments[s].device for s in self.trained}.union(*self.copied) - others
        homes = [name for name in self.names if name in training]
        for home in homes:
            self._reduce(home, 0)
        for devices in self.copied:
            if frozenset(devices) not in self.sharded:
                self._start_sum("gradients", devices, 0)
        for b, bundle in enumerate(self.bundles):
            if bundle.level == "optimizer":
                self._collect(Scatter, b)
        if self.shared_norm:
            stepping = tuple(name for home in homes for name in self.replicas.get(home, (home,)))
            self._start_sum("norm", stepping, 0)
        for home in homes:
            self._step(home, 0)
        for b, bundle in enumerate(self.bundles):
            if bundle.level != "parameters":
                self._collect(Gather, b)

    def _step(self, home: str, number: int) -> None:
        every = self.schedule.update_every
        fraction = 1.0
        if every is not None:
            count = every * len(self.replicas.get(home, (home,)))
            fraction = 1.0 / min(count, self.schedule.microbatches - number * count)
        for name in self.replicas.get(home, (home,)):
            self._emit(name, Step(number, fraction))
            self.steps[name] += 1

    def _reduce(self, home: str, number: int) -> None:
        if home in self.replicas and frozenset(self.replicas[home]) not in self.sharded:
            self._start_sum("gradients", self.replicas[home], number)

    def _start_sum(self, kind: Reduction, devices: tuple[str, ...], number: int) -> None:
        for name in devices:
            self._emit(name, Reduce(devices, self.tag, number, kind=kind))
        self.tag += 1

    def _collect(self, kind: type[Gather | Scatter], b: int) -> None:
        devices = self.bundles[b].devices
        for name in devices:
            self._emit(name, kind(devices, self.tag, bundle=b))
        self.tag += 1

    def _update(self, segment: Segment, i: int) -> int:
        every = self.schedule.update_every
        return 0 if every is None else i // (every * max(len(segment.replicas), 1))

    def _transfer(self, copy: str, k: str, i: int, p: str, q: str, *, gradient: bool) -> None:
        read = self.graph.nodes[copy].inputs[0]
        shared: dict[str, Any] = {"variable": copy, "source": k, "microbatch": i, "gradient": gradient}
        shared["via"] = "" if read == k else read
        self._emit(p, Send(peer=q, tag=self.tag, **shared))
        self._emit(q, Recv(peer=p, tag=self.tag, **shared))
        self.tag += 1

    def _emit(self, device: str, instruction: Instruction) -> None:
        if device in self.lists:  # else another one does the same
            self.lists[device].append(instruction)
            self.order.append(device)

    def _copies(self, k: str) -> list[str]:
        if k not in self.copies:
            copies = copies_of(self.graph, k)
            self.copies[k] = sorted(copies, key=lambda copy: self.rank[self.device_of[copy]])
        return self.copies[k]


def _copies_of(graph: Graph, variables: Collection[str]) -> frozenset[str]:
    return frozenset(
        node.name for node in graph if node.op == TRANSFER and origin(graph, node.name) in variables
    )
