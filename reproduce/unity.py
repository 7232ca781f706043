"""Methods on more and more nodes of Summit, as Unity was evaluated (OSDI 2022, figure 14)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netsplit.cluster.described import ClusterDescription
from netsplit.config import build
from netsplit.errors import ConfigError, InfeasibleError, RewriteError, TimeLimitError
from netsplit.graph.ir import Graph
from netsplit.partition import Choice, Partitioner, Problem
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.partition.methods.baselines import Ddp
from netsplit.program.schedules import GPipe, SingleBatch
from netsplit.rewrite import (
    OperatorTasks,
    Rewrite,
    TaskCut,
    along_samples,
    applied,
    columns_and_rows,
    replicate,
    splits_of,
)
from netsplit.rewrite.leaves import require_copies
from netsplit.tables import Cell, Column
from reproduce.cases import ByName, ModelCase, check_references
from reproduce.fastt import described_case, fits
from reproduce.result import StudyResult

__all__ = ["ColumnsAndRows", "TablesApart", "parallel_speeds"]

log = logging.getLogger(__name__)

NOTES = (
    "Planned: seconds are predicted, an iteration is simulated, in samples/s.",
    "gain: of the subject over the best of the others; printed: that of the paper.",
    "-: nothing fits, or the method has no answer.",
)


def parallel_speeds(
    cases: ByName[ModelCase],
    methods: dict[str, Any],
    cluster: Callable[..., ClusterDescription],
    nodes: Sequence[int] = (1, 2, 4),
    subject: str = "unity",
    seed: int = 0,
) -> StudyResult:
    """Samples per second of every method on every number of nodes.

    Args:
        cases: `batch_size` is that of each device; `reference` may have ``gain``: how many times as fast as
            the best of the others Unity was.
        methods: name -> what a partitioner is built of, as an option of conf/partitioner.
        cluster: makes one of so many `nodes`, as conf/cluster/summit.yaml.
        nodes: how many, each in turn.
        subject: the method whose gain is shown, where it is among them.
        seed: of methods.

    Raises:
        CaptureError: a case cannot be captured.
        ConfigError: a method that cannot be built, or none.
    """
    check_references(cases, "gain")
    if not methods:
        raise ConfigError("study.methods is empty: give at least one, as in experiment/unity.yaml.")
    made: dict[str, Partitioner] = {name: build(each) for name, each in methods.items()}
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for name, case in cases.items():
        for count in nodes:
            where = cluster(nodes=count)
            devices = len(where.speeds)
            speeds: dict[str, float | None] = {}
            for method, partitioner in made.items():
                speeds[method], took = _planned(case, where, partitioner, seed)
                metrics[f"decided_s.{method}.{name}.{devices}"] = took
                log.info("%s, %d devices: %s %s samples/s", name, devices, method, speeds[method])
            known = {method: speed for method, speed in speeds.items() if speed is not None}
            metrics |= {f"samples_s.{method}.{name}.{devices}": speed for method, speed in known.items()}
            own, others = known.pop(subject, None), list(known.values())
            gain = own / max(others) if own is not None and others else None
            best = max(speeds, key=lambda each: speeds[each] or 0.0)
            tail = (best, gain, case.reference.get("gain"))
            rows.append((case.label or name, devices, case.batch_size * devices, *speeds.values(), *tail))
    columns = (
        Column("case", text=True), Column("devices", "d"), Column("batch", ",d"),
        *(Column(method, ",.1f") for method in made),
        Column("best", text=True), Column("gain", ".2f"), Column("printed", ".1f"),
    )  # fmt: skip
    return StudyResult("Methods on more and more nodes", columns, tuple(rows), NOTES, metrics=metrics)


def _planned(
    case: ModelCase, cluster: ClusterDescription, method: Partitioner, seed: int
) -> tuple[float | None, float]:
    """Samples per second, None where nothing fits; seconds to decide."""
    devices = len(cluster.speeds)
    batch = case.batch_size * devices
    schedule = GPipe(devices) if isinstance(method, Ddp) else SingleBatch()
    try:
        plan = described_case(case, cluster, batch, schedule, seed).plan(method)
    except (InfeasibleError, RewriteError, TimeLimitError) as refusal:
        log.info("%s: %s", method.name, refusal)
        return None, 0.0
    return (batch / plan.objective_s if fits(plan) else None), plan.seconds


@dataclass
class ColumnsAndRows(Partitioner):
    """Megatron's: samples over servers, products by columns and rows within, all else on every device."""

    name = "columns_and_rows"

    def choose(self, problem: Problem) -> Choice:
        hosts = max(len(problem.cluster.nics), 1)
        inner = len(problem.cluster.devices) // hosts
        return _beside(problem, megatron_tasks(problem.graph, hosts, inner), {})


def megatron_tasks(graph: Graph, hosts: int, inner: int) -> tuple[OperatorTasks, ...]:
    """Raises `RewriteError`: no products can be cut in so many columns."""
    parts = (1.0,) * inner
    chains = [each for each in columns_and_rows(graph) if each.chained and each.splits(parts)]
    if not chains:
        raise RewriteError(f"no product can be cut by columns, and the next by rows, in {inner} parts.")
    columns = {each.node: each for each in splits_of(graph, chains, parts)}
    samples = {each.node: each for each in along_samples(graph, hosts)} if hosts > 1 else {}
    made = []
    for node in graph:
        own = [each[node.name] for each in (samples, columns) if node.name in each]
        cuts = tuple(TaskCut(each.axis, each.sizes, each.blocks) for each in own)
        alike = inner if node.name not in columns and _has_copies(graph, node.name) else 1
        numbers = range(hosts if node.name in samples else 1)
        weights = [i * alike for i in numbers for _ in range(inner if node.name in columns else 1)]
        copies = (alike,) if alike > 1 else ()
        if cuts or copies:
            made.append(OperatorTasks(node.name, cuts, copies, tuple(weights)))
    return tuple(made)


def _has_copies(graph: Graph, name: str) -> bool:
    try:
        require_copies(graph, graph.nodes[name])
    except RewriteError:
        return False
    return True


@dataclass
class TablesApart(Partitioner):
    """Whole tables on one device after another, all else data parallel on copies of the weights."""

    name = "tables_apart"

    def choose(self, problem: Problem) -> Choice:
        devices = [device.name for device in problem.cluster.devices]
        tables = [node.name for node in problem.graph if "embedding" in node.op]
        where = {name: devices[i % len(devices)] for i, name in enumerate(tables)}
        every = replicate(problem.graph, len(devices))
        return _beside(problem, [each for each in every if each.node.partition(":")[0] not in where], where)


def _beside(problem: Problem, rewrites: Sequence[Rewrite], whole: Mapping[str, str]) -> Choice:
    graph = applied(problem.graph, rewrites)
    return Choice(devices_of_nodes(graph, problem.cluster.names, whole), rewrites=tuple(rewrites))
