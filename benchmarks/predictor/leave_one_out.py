"""Measured profiles of models, and how far predictions are from them."""

from __future__ import annotations

import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from benchmarks._subjects import Subject
from benchmarks.predictor.fit import calibrate_rates
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.graph.recording.step import capture
from netsplit.profile.costs import DeviceCosts, NodeSeconds
from netsplit.profile.measure.clock import reference_seconds
from netsplit.profile.measure.compute import Profiler, walks_to_settle
from netsplit.profile.measured import Measured, ProfileCache, profile_digest
from netsplit.profile.predict import operator_class, predicted_seconds

__all__ = ["Error", "Profile", "left_out", "profile"]


@dataclass(frozen=True)
class Profile:
    """One model as measured on a thread of this machine."""

    model: str
    graph: Graph
    seconds: Mapping[str, NodeSeconds]
    drift: float  # of the machine's speed while it was measured
    kept: bool  # from an earlier run
    reference_s: float  # how fast the machine was meanwhile, see `reference_seconds`


@dataclass(frozen=True)
class Error:
    """Predictions of one model against its profile."""

    model: str
    nodes: int
    measured_s: float  # sums over all nodes, forward and backward
    predicted_s: float
    node_errors: tuple[float, ...] = field(repr=False)  # |predicted / measured - 1| of every node
    weighted: float  # the same, weighed by the seconds measured
    by_class: Mapping[str, tuple[float, float]]  # operator class -> seconds measured, seconds predicted

    @property
    def iteration(self) -> float:
        """Predicted / measured seconds, less 1."""
        return self.predicted_s / self.measured_s - 1

    @property
    def node_median(self) -> float:
        return statistics.median(self.node_errors)


def profile(subject: Subject, cache: ProfileCache, repeats: int, rounds: int) -> Profile:
    """The model's operators on one thread: kept ones where nothing has changed, else measured now."""
    model, loss = subject.fresh(), nn.CrossEntropyLoss()
    inputs, targets = subject.batch(1)
    graph = capture(model, loss, ((inputs,), (targets,)))
    device = {
        "kind": "cpu",
        "host": platform.node(),
        "processor": platform.processor(),
        "threads": 1,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    digest = profile_digest(graph, device, purpose="predictor", repeats=repeats, rounds=rounds)
    kept = cache.get(digest, Measured)
    if kept is not None:
        return Profile(subject.name, graph, kept.costs.nodes, kept.drift, True, kept.reference_s)
    profiler = Profiler(graph, (inputs, targets), initial_values(model, graph, loss), "cpu", repeats=repeats)
    reference = [reference_seconds("cpu")]
    for _ in range(rounds):
        profiler.round()
        reference.append(reference_seconds("cpu"))
    for _ in walks_to_settle(profiler):
        pass
    measured = Measured(DeviceCosts(profiler.seconds()), profiler.drift, statistics.median(reference))
    cache.put(digest, measured)
    return Profile(subject.name, graph, measured.costs.nodes, profiler.drift, False, measured.reference_s)


def left_out(profiles: Sequence[Profile], drawn: Sequence[Profile] = ()) -> list[Error]:
    """Every model of `profiles`, predicted from rates that were calibrated on all others and on `drawn`."""
    everything = [*profiles, *drawn]
    errors = []
    for each in profiles:
        rates = calibrate_rates([(p.graph, p.seconds) for p in everything if p is not each], "cpu")
        errors.append(_error(each, predicted_seconds(each.graph, rates)))
    return errors


def _error(measurement: Profile, predicted: Mapping[str, NodeSeconds]) -> Error:
    measured = {name: each.total_s for name, each in measurement.seconds.items()}
    promised = {name: predicted[name].total_s for name in measured}
    errors = {name: abs(promised[name] / measured[name] - 1) for name in measured}
    classes: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for node in measurement.graph:
        sums = classes[operator_class(measurement.graph, node)]
        sums[0] += measured[node.name]
        sums[1] += promised[node.name]
    total = sum(measured.values())
    return Error(
        measurement.model,
        len(measured),
        total,
        sum(promised.values()),
        tuple(errors.values()),
        sum(errors[name] * measured[name] for name in measured) / total,
        {kind: (a, b) for kind, (a, b) in classes.items()},
    )
