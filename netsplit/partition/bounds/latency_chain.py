"""A lower bound on latency by dynamic programming over the sections of the folded graph.

A label is (device of the last node that everything passes, bytes of each device in whole buckets); its
value are the seconds so far, so labels that are equal lose nothing when they meet. Over a run of sections on
one device the buckets are differences of rounded prefix sums: a run, however long, is short by two at most.

Source: resource-constrained shortest paths with rounded resources; rounding by prefix sums is our own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from netsplit.partition.bounds.latency_diagram import OutOfTime
from netsplit.partition.bounds.latency_exclusive import branching, exclusive_seconds, shortest_ways
from netsplit.partition.bounds.latency_fold import Folded, fold
from netsplit.partition.bounds.latency_kernels import Labels, Limits, StepArrays, advance, undominated
from netsplit.partition.bounds.latency_sections import Section, Steps, sections_of, steps_of
from netsplit.partition.common.instance import Floats, Ints
from netsplit.partition.common.interchangeable import interchangeable_devices
from netsplit.partition.common.step_graph import StepGraph

__all__ = ["Chain", "chain_bound", "chain_of"]

RATE = 2e7  # trials of a step a second
LABELS = 400_000
DEVICES = 5  # of which a label's key has room for the bytes
EXCLUSIVE = 0.6  # of the time, for sections alone
FEW_DEVICES = 3  # for which that was seen to pay off; with four the other steps need the time
FOLDING_S = 2e-6  # of a pair of nodes: folding compares all pairs; twice what was measured


@dataclass(eq=False)
class Chain:
    folded: Folded
    sections: list[Section]
    steps: list[Steps]
    most_s: float
    ahead: list[Floats] = field(default_factory=list)  # [sections + 1][D] least seconds that follow

    def bound(self, buckets: int, limit: int, deadline: float) -> float | None:
        """Seconds that no answer beats, at most `most_s`; None: too many labels, or out of time."""
        capacity = self.folded.capacity.astype(np.int64)
        bucket = max(1, int(capacity.max()) // buckets)
        need = np.rint([section.need for section in self.sections]).astype(np.int64)
        behind = np.concatenate([[0], np.cumsum(need)])
        labels = Labels(np.array([start_key(len(capacity))]), np.zeros(1))
        for k in range(len(self.steps)):
            low, high = int(behind[k]), int(behind[k + 1])
            steps = self._steps_in_buckets(k, float(need[k]), bucket)
            starts = np.searchsorted(steps.source, np.arange(len(capacity) + 1))
            later = int(behind[-1] - high) // bucket
            limits = Limits(
                self.ahead[k + 1], capacity // bucket, int(capacity.sum()) // bucket - later, self.most_s,
                limit, int(RATE * max(0.0, deadline - time.perf_counter())),
            )  # fmt: skip
            going = high // bucket - low // bucket
            fresh = high // bucket - -(-low // bucket)
            labels, fine = advance(labels, steps, starts, going, fresh, limits)
            if not fine or time.perf_counter() > deadline:
                return None
            if not len(labels.keys):
                return self.most_s
        return float(min(labels.seconds.min(), self.most_s))

    def _steps_in_buckets(self, k: int, need: float, bucket: int) -> StepArrays:
        """What no other step through section k dominates: by source, ascending in seconds to the end."""
        steps = self.steps[k]
        counts = np.floor(steps.used).astype(np.int64) // bucket
        arrays = StepArrays(steps.source, steps.target, _pure(steps, need), counts, steps.seconds)
        rows = np.argsort(arrays.cost, kind="stable")
        rows = rows[undominated(arrays.take(rows))]
        ends = arrays.cost + self.ahead[k + 1][arrays.target]
        return arrays.take(rows[np.lexsort((ends[rows], arrays.source[rows]))])


def start_key(devices: int) -> int:
    key = 0
    for d in range(devices):
        key |= 2 << (4 + 11 * d)
    return key


def _pure(steps: Steps, need: float) -> Ints:
    """[S] the one device that a step uses, for the bytes of its nodes alone; or -1."""
    total = steps.used.sum(axis=1)
    only = steps.used[np.arange(len(total)), steps.target] == total
    return np.where(only & (total == need), steps.target, -1)


def chain_bound(graph: StepGraph, most_s: float, deadline: float) -> tuple[float, dict[str, Any]]:
    """Seconds that no answer beats, at most `most_s`, and what was tried.

    0 where the graph does not fold, not in time, or has too many devices.
    """
    if len(graph.instance.devices) > DEVICES:
        return 0.0, {}
    if time.perf_counter() + FOLDING_S * graph.n**2 > deadline:
        return 0.0, {"skipped": "no time to fold"}
    folded = fold(graph)
    if folded is None or not folded.count:
        return 0.0, {}
    width, notes = 1000, dict[str, Any]()
    best_s = float((folded.fastest + folded.inside).max())
    least = _exclusive(graph, folded, most_s, width, deadline) if best_s < most_s else None
    if least:
        best_s = max(best_s, min(most_s, float(shortest_ways(least)[0].min())))
    step = 1.06
    while time.perf_counter() < deadline and best_s < most_s and width < 100_000:
        target = min(most_s, step * best_s) if best_s > 0 else most_s
        chain = chain_of(folded, target, width, deadline, least)
        if chain is None:
            break
        bound_s = float(chain.ahead[0][0])
        for buckets in (16, 24, 40, 64, 100, 160, 256, 400, 640, 1000):
            if bound_s >= target:
                break
            bound = chain.bound(buckets, LABELS, deadline)
            if bound is None:
                break
            if bound > bound_s:
                bound_s, notes = bound, {"width": width, "buckets": buckets}
        if bound_s < target:  # nearly as good as it can be proven at this width
            width, step = 2 * width, 1 + max(0.004, (step - 1) / 2)
        best_s = max(best_s, min(bound_s, target))
    return best_s, notes


def _exclusive(
    graph: StepGraph, folded: Folded, most_s: float, width: int, deadline: float
) -> list[Floats] | None:
    """`exclusive_seconds` within part of the time, from what the steps of a chain take."""
    if len(folded.capacity) > FEW_DEVICES or not any(map(branching, sections_of(folded))):
        return None
    chain = chain_of(folded, most_s, width, deadline)
    if chain is None:
        return None
    devices = len(chain.folded.capacity)
    least = [np.full((devices, devices), np.inf) for _ in chain.steps]
    for each, steps in zip(least, chain.steps, strict=True):
        np.minimum.at(each, (steps.source, steps.target), steps.seconds)
    alike = np.zeros(devices, np.int64)
    for number, together in enumerate(interchangeable_devices(graph.instance)):
        alike[together] = number
    until = time.perf_counter() + EXCLUSIVE * (deadline - time.perf_counter())
    return exclusive_seconds(chain.folded, chain.sections, least, chain.most_s, until, alike.tolist())


def chain_of(
    folded: Folded, most_s: float, width: int, deadline: float, least: Sequence[Floats] | None = None
) -> Chain | None:
    """The sections' steps that an iteration of less than `most_s` may consist of.

    Args:
        least: [sections][D, D] seconds that each takes at least, by the devices of its ends.
    """
    if not folded.count or len(folded.capacity) > DEVICES:
        return None
    devices = len(folded.capacity)
    try:
        sections = sections_of(folded, deadline)
    except OutOfTime:
        return None
    before = np.zeros(devices)
    layers: list[Steps] = []
    before[1:] = np.inf
    for section in sections:
        beyond = 0.0 if section.target < 0 else float(folded.inside[section.target])
        steps = steps_of(folded, section, before, most_s, width, deadline, beyond)
        if steps is None:
            return None
        if least is not None:
            floor = least[len(layers)][steps.source, steps.target]
            steps = replace(steps, seconds=np.maximum(steps.seconds, floor))
            steps = steps.take(np.isfinite(steps.seconds))
        layers.append(steps)
        after = np.full(devices, np.inf)
        np.minimum.at(after, steps.target, before[steps.source] + steps.seconds)
        before = after
    ahead: list[Floats] = [np.full(devices, np.inf) for _ in sections] + [np.zeros(devices)]
    befores = [np.concatenate([[0.0], np.full(devices - 1, np.inf)])]
    for k in range(len(sections) - 1, -1, -1):
        np.minimum.at(ahead[k], layers[k].source, layers[k].seconds + ahead[k + 1][layers[k].target])
    kept = []
    for k, steps in enumerate(layers):
        fine = befores[-1][steps.source] + steps.seconds + ahead[k + 1][steps.target] < most_s
        steps = steps.take(fine)
        kept.append(steps)
        after = np.full(devices, np.inf)
        np.minimum.at(after, steps.target, befores[-1][steps.source] + steps.seconds)
        befores.append(after)
    return Chain(folded, sections, kept, most_s, ahead)
