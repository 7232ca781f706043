"""NetSplit as a contender: given cuts, several deployments kept on the same workers, ideals.

A session's workers hold one deployment at a time; here each is put aside and taken back when its turn comes,
so that iterations of different schedules interleave without new processes.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

import netsplit
from benchmarks._rivals import OPTIMIZER
from benchmarks._subjects import Subject
from netsplit.cluster.cluster import Cluster, Link
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.planning.plan import Plan
from netsplit.planning.whole.judge import problem_under
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program.instructions import Program
from netsplit.runtime.workers.messages import Worker
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.settings import ProfileMode
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Timeline
from netsplit.training.options import Training
from netsplit.training.parallel import ParallelModel

__all__ = ["Cut", "Deployed", "Ours", "best_cut", "free_ideal", "unit_of", "unit_seconds"]


@dataclass(frozen=True)
class Cut(Partitioner):
    """Units in the model's order, cut before each of `places`; pieces go to the devices in turn."""

    places: tuple[int, ...]

    name = "cut"
    optimises = "nothing"
    respects_capacity = False

    def choose(self, problem: Problem) -> Choice:
        unit, devices = unit_of(problem.graph), problem.cluster.devices
        piece = {name: sum(place <= unit[name] for place in self.places) for name in problem.graph.nodes}
        return Choice({name: devices[p % len(devices)].name for name, p in piece.items()})


def unit_of(graph: Graph) -> dict[str, int]:
    """Node -> the place of the model's child that made it; what no child made goes with what came before.

    Sets of nodes that must share a device go with their first.
    """
    children: dict[str, int] = {}
    places: dict[str, int] = {}
    for node in graph:
        child = node.module.split(".")[0]
        if child:
            children.setdefault(child, len(children))
            places[node.name] = children[child]
        else:
            places[node.name] = max((places[u] for u in graph.predecessors[node.name]), default=0)
    for group in graph.colocated:
        places |= dict.fromkeys(group, places[group[0]])
    return places


def unit_seconds(graph: Graph, costs: Costs, kind: str) -> list[float]:
    """Forward and backward seconds of every unit."""
    units = unit_of(graph)
    seconds = [0.0] * (max(units.values()) + 1)
    for name, unit in units.items():
        seconds[unit] += costs.total_s(name, kind)
    return seconds


def best_cut(step: ModelStep, problem: Problem, pieces: int, tried: int = 12) -> Cut:
    """The cut with the least predicted iteration of those that balance two devices best."""
    kind = problem.cluster.devices[0].kind
    seconds = unit_seconds(problem.graph, problem.costs, kind)

    def load(places: Sequence[int]) -> float:
        ends = [0, *places, len(seconds)]
        parts = [sum(seconds[a:b]) for a, b in itertools.pairwise(ends)]
        return max(sum(parts[0::2]), sum(parts[1::2]))

    cuts = sorted(itertools.combinations(range(1, len(seconds)), pieces - 1), key=load)[:tried]
    plans = [step.plan(problem, Cut(places)) for places in cuts]
    best = min(range(len(cuts)), key=lambda n: plans[n].objective_s)
    return Cut(cuts[best])


@dataclass(frozen=True)
class Deployed:
    """A plan on the workers, ready when its turn comes."""

    name: str
    plan: Plan
    model: ParallelModel
    session: Session

    def ready(self) -> None:
        """Take it back on the workers; not to be timed."""
        self.session.pool.call(_use, self.name)
        runtime = self.model.runtime
        self.session.pool.deployed = runtime
        self.session.pool.programs = {1: runtime.program}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(hello.pid for hello in self.session.pool.hellos)


class Ours:
    """A model on two worker processes under any number of plans; `gloo` joins them, or their memory."""

    def __init__(
        self,
        subject: Subject,
        microbatches: int,
        schedule: Any,
        gloo: bool = False,
        profile: ProfileMode = "off",
        timeout_s: float = 60.0,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="netsplit-bench-", ignore_cleanup_errors=True)
        cluster = replace(netsplit.cpu_cluster(2), cross_memory=not gloo, timeout_s=timeout_s)
        self.session = Session(cluster, Path(self._folder.name), profile=profile)
        self.batch = subject.batch(microbatches)
        self.loss = nn.CrossEntropyLoss()
        try:
            self.subject = self.session.step(subject.fresh(), self.loss, self.batch, Training(OPTIMIZER))
            self.problem = self.session.problem(self.subject, schedule)
        except BaseException:
            self.close()
            raise

    def deploy(
        self, name: str, partitioner: Partitioner, schedule: Any, backend: str | None = None
    ) -> Deployed:
        plan = self.subject.plan(problem_under(self.problem, schedule), partitioner)
        training = replace(self.subject.training, compile_backend=backend)
        model = self.session.deploy(replace(self.subject, training=training), plan)
        self.session.pool.call(_keep, name)
        return Deployed(name, plan, model, self.session)

    def step(self, deployed: Deployed) -> None:
        deployed.model.train_batch(*self.batch)

    def trace(self, deployed: Deployed) -> Timeline:
        return deployed.model.measure_batch(*self.batch)[1]

    def peak_bytes(self, deployed: Deployed) -> dict[str, int]:
        """Device -> metered bytes of one iteration."""
        return deployed.model.measure_batch(*self.batch, bytes_too=True)[1].peak_bytes

    def costs(self) -> Costs:
        """Measured once more, as `Session.problem` does."""
        task = self.subject.task(self.problem.graph, self.problem.in_flight)
        return self.session.costs.of(task)

    def close(self) -> None:
        self.session.close()
        self._folder.cleanup()


def free_ideal(program: Program, cluster: Cluster, timelines: Sequence[Timeline], costs: Costs) -> float:
    """Seconds of an iteration in which computations last as they were measured and all else is free.

    What is left is the schedule's own bubble: for a chain on two devices under `gpipe` or `1f1b`, the
    busier device's seconds and the other's one micro-batch.
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    for timeline in timelines:
        for event in timeline.events:
            seconds.setdefault((event.name, event.kind), []).append(event.seconds)
    median = {key: statistics.median(each) for key, each in seconds.items()}
    nodes: dict[str, NodeSeconds] = {}
    for segment in program.segments:
        name = f"segment {segment.index}"
        nodes |= dict.fromkeys(segment.nodes, NodeSeconds(0.0, 0.0))
        requires_backward = [
            n
            for n in segment.nodes
            if not program.graph.requires_backward.isdisjoint(program.graph.nodes[n].outputs)
        ]
        forward, backward = median.get((name, "forward"), 0.0), median.get((name, "backward"), 0.0)
        nodes[(requires_backward or list(segment.nodes))[0]] = NodeSeconds(forward, backward)
    free = {
        device.kind: DeviceCosts(nodes, costs.of(device.kind).step_s_per_byte) for device in cluster.devices
    }
    links = dict.fromkeys(cluster.links, Link(0.0, 0.0))
    return simulate(program, cluster.with_links(links), Costs(free, costs.alpha)).iteration_s


_KEPT: dict[str, dict[str, Any]] = {}  # on a worker: name of a deployment -> what the worker held of it


def _keep(worker: Worker, name: str) -> None:
    _KEPT[name] = dict(worker.memory)


def _use(worker: Worker, name: str) -> None:
    worker.memory.clear()
    worker.memory.update(_KEPT[name])
