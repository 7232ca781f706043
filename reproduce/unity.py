"""Methods on more and more devices of Summit, as Unity was evaluated (OSDI 2022, section 7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription
from netsplit.config import build
from netsplit.errors import ConfigError, InfeasibleError, RewriteError, TimeLimitError
from netsplit.graph.ir import Graph
from netsplit.partition import Partitioner, PipeDream, Problem, Unity
from netsplit.partition.methods.unity.choices import Machines
from netsplit.partition.methods.unity.costed import Costed, Known
from netsplit.partition.methods.unity.mapping import best_mapping
from netsplit.partition.methods.unity.substitutions import Substituted, best_graph, rules_of
from netsplit.program.schedules import OneFOneB, SingleBatch
from netsplit.rewrite import rewritten_costs
from netsplit.tables import Cell, Column
from reproduce.by_hand import ByHand
from reproduce.cases import ByName, ModelCase, check_references
from reproduce.fastt import described_case, fits
from reproduce.result import StudyResult

__all__ = ["parallel_speeds", "search_seconds"]

log = logging.getLogger(__name__)

BatchNorm = Literal["whole", "local"]

NOTES = (
    "Planned, in samples/s. simulated: the lowered plan; costs: the search's own estimate, not lowered.",
    "gain: the subject over the best of the others, without study.beside; printed: the paper's.",
    "local: every BatchNorm normalises each sample alone, at the same cost; for planning only.",
    "-: nothing fits, or the method gives no plan.",
)
NORMS: Mapping[type[nn.Module], Callable[..., nn.Module]] = {
    nn.BatchNorm1d: nn.InstanceNorm1d,
    nn.BatchNorm2d: nn.InstanceNorm2d,
    nn.BatchNorm3d: nn.InstanceNorm3d,
}


def parallel_speeds(
    cases: ByName[ModelCase],
    methods: dict[str, Any],
    cluster: Callable[..., ClusterDescription] | None = None,
    nodes: Sequence[int] = (1, 2, 4),
    clusters: dict[str, Any] | None = None,
    lowered: int = 24,
    batch_norm: BatchNorm = "local",
    fused: bool = False,
    subject: str = "unity",
    beside: Sequence[str] = (),
    seed: int = 0,
) -> StudyResult:
    """Samples per second of every method on every cluster.

    Args:
        cases: `batch_size` is that of each device; `reference` may have ``gain``: how many times as fast as
            the best of the others Unity was.
        methods: name -> what a partitioner is built of, as an option of conf/partitioner.
        cluster: makes one of so many `nodes`, as conf/cluster/summit.yaml.
        nodes: how many, each in turn.
        clusters: name -> what others are built of, as conf/cluster has them.
        lowered: devices up to which plans are lowered and simulated; of more, the search's seconds count, for
            all methods alike, and what did not fit before is not asked.
        batch_norm: local: of planned parts each has statistics of its own, which nobody may train.
        fused: a ReLU is in the operator before it, takes nothing, and lets no operator be cut along what it
            sums over: costs alone, which nothing can run, of `Unity` without algebra.
        subject: the method whose gain is shown, where it is among them.
        beside: methods that are shown, and are none of the others of the gain.
        seed: of methods.

    Raises:
        CaptureError: a case cannot be captured.
        ConfigError: a method that cannot be built, or none; no clusters, or another `batch_norm`.
    """
    check_references(cases, "gain")
    if not methods:
        raise ConfigError("study.methods is empty: give at least one, as in experiment/unity.yaml.")
    if batch_norm not in get_args(BatchNorm):
        raise ConfigError(f"study.batch_norm is {batch_norm!r}: give whole or local.")
    made: dict[str, Partitioner] = {name: build(each) for name, each in methods.items()}
    if fused:  # without ReLUs that stand between, algebra would make one product of two
        made = {name: _fused(each) for name, each in made.items() if isinstance(each, Unity)}
    where = [cluster(nodes=n) for n in nodes] if cluster else []
    where += [build(each) for each in (clusters or {}).values()]
    if not where:
        raise ConfigError(
            "study.cluster and study.clusters are empty: give one, as in experiment/unity.yaml."
        )
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for name, case in cases.items():
        planned, own = _stood_in(case, batch_norm, fused)
        over = set[str]()
        for each in where:
            devices = len(each.speeds)
            simulated = devices <= lowered and not fused
            speeds_of: dict[str, float | None] = {}
            for method, partitioner in made.items():
                if method in over and not simulated:
                    speeds_of[method] = None
                    continue
                speeds_of[method], took = _planned(planned, each, partitioner, simulated, seed)
                if speeds_of[method] is None:
                    over.add(method)
                metrics[f"decided_s.{method}.{name}.{each.name}.{devices}"] = took
                log.info("%s, %d devices: %s %s samples/s", name, devices, method, speeds_of[method])
            known = {method: speed for method, speed in speeds_of.items() if speed is not None}
            metrics |= {f"samples_s.{k}.{name}.{each.name}.{devices}": speed for k, speed in known.items()}
            mine, others = known.get(subject), [v for k, v in known.items() if k not in (subject, *beside)]
            gain = mine / max(others) if mine is not None and others else None
            best = max(speeds_of, key=lambda k: (speeds_of[k] or 0.0, k == subject))
            judged = "simulated" if simulated else "costs, not lowered"
            row = (case.label or name, own, each.name, devices, case.batch_size * devices, judged)
            rows.append((*row, *speeds_of.values(), best, gain, case.reference.get("gain")))
    columns = (
        Column("case", text=True), Column("planned with", text=True), Column("cluster", text=True),
        Column("devices", "d"), Column("batch", ",d"), Column("by", text=True),
        *(Column(method, ",.1f") for method in made),
        Column("best", text=True), Column("gain", ".2f"), Column("printed", ".1f"),
    )  # fmt: skip
    return StudyResult("Methods on more and more devices", columns, tuple(rows), NOTES, metrics=metrics)


def _planned(
    case: ModelCase, cluster: ClusterDescription, method: Partitioner, simulated: bool, seed: int
) -> tuple[float | None, float]:
    """Samples per second, None where nothing fits; CPU seconds to decide."""
    batch, began = case.batch_size * len(cluster.speeds), time.process_time()
    schedule = OneFOneB(batch) if isinstance(method, PipeDream) else SingleBatch()
    described = described_case(case, cluster, batch, schedule, seed)
    try:
        if simulated:
            plan = described.plan(method)
            seconds = plan.objective_s if fits(plan) else None
            log.info("%s: %s", method.name, plan.placement.report.summary())
        elif isinstance(method, ByHand):
            seconds = method.seconds(described.problem)
        elif isinstance(method, Unity):
            seconds, searched = foreseen(method, described.problem)
            log.info("%s: %d substitutions, ended by %s", method.name, len(searched.steps), searched.ended_by)
        else:
            seconds = None
    except (InfeasibleError, RewriteError, TimeLimitError) as refusal:
        log.info("%s: %s", method.name, refusal)
        seconds = None
    return (None if seconds is None else batch / seconds), time.process_time() - began


def foreseen(method: Unity, problem: Problem) -> tuple[float, Substituted]:
    """Seconds of what Unity finds, by its costs: nothing is lowered, nor asked whether it fits."""
    graph, known = problem.graph, Known()
    machines = Machines.of(problem)

    def mapped_s(own: Graph, tasks: object = None) -> float:
        costs = rewritten_costs(problem.costs, graph, own)
        costed = Costed(own, costs, machines, tuple(method.dimensions), known=known)
        return best_mapping(costed, cache=method.cache, split=method.split).seconds

    def alone_s(own: Graph, tasks: object = None) -> float:
        costs = rewritten_costs(problem.costs, graph, own)
        return min(sum(costs.total_s(v, kind) for v in own.nodes) for kind in costs.devices)

    rules = rules_of(method.rules) if method.algebra else ()
    cost = mapped_s if method.search == "joint" else alone_s
    searched = best_graph(graph, rules, cost, method.alpha, method.budget, method.piece)
    return mapped_s(searched.best), searched


def _fused(method: Unity) -> Unity:
    return replace(method, algebra=False, dimensions=[k for k in method.dimensions if k != "reduction"])


def _stood_in(case: ModelCase, batch_norm: BatchNorm, fused: bool) -> tuple[ModelCase, str]:
    """The case with modules that stand for others, and in words for which."""
    kinds = {*(NORMS if batch_norm == "local" else ()), *([nn.ReLU] if fused else [])}
    met: set[str] = set()

    def model() -> nn.Module:
        whole = case.model()
        for module in list(whole.modules()):
            for name, each in module.named_children():
                if type(each) not in kinds:
                    continue
                local = type(each) in NORMS
                met.add("BatchNorm local" if local else "ReLU fused")
                stand_in = NORMS[type(each)](each.num_features, affine=True) if local else nn.Identity()
                setattr(module, name, stand_in)
        return whole

    with torch.device("meta"):
        model()
    return replace(case, model=model), ", ".join(sorted(met)) or "as trained"


SEARCH_COLUMNS = (
    Column("devices", "d"), Column("search", text=True), Column("CPU s", ".1f"), Column("ms", ".2f"),
    Column("printed s", ".0f"),
)  # fmt: skip


def search_seconds(
    cases: ByName[ModelCase],
    cluster: Callable[..., ClusterDescription],
    methods: dict[str, Any],
    nodes: Sequence[int] = (1, 2, 4, 8),
    printed: Mapping[str, Sequence[float | None]] | None = None,
    batch_norm: BatchNorm = "local",
    seed: int = 0,
) -> StudyResult:
    """CPU seconds of Unity's search with and without what makes it fast (table 2): nothing is lowered.

    Args:
        cases, cluster, nodes, batch_norm, seed: as for `parallel_speeds`.
        methods: name -> what a `Unity` is built of.
        printed: name -> seconds on each number of nodes.

    Raises:
        CaptureError: a case cannot be captured.
        ConfigError: a method that is no `Unity`.
    """
    check_references(cases)
    rows: list[tuple[Cell, ...]] = []
    for case in cases.values():
        planned, _ = _stood_in(case, batch_norm, False)
        for i, n in enumerate(nodes):
            where = cluster(nodes=n)
            batch = case.batch_size * len(where.speeds)
            for name, each in methods.items():
                method = build(each)
                if not isinstance(method, Unity):
                    raise ConfigError(f"study.methods.{name} is not unity: give netsplit.partition.Unity.")
                problem = described_case(planned, where, batch, SingleBatch(), seed).problem
                began = time.process_time()
                seconds, _ = foreseen(method, problem)
                took = time.process_time() - began
                told = dict(enumerate((printed or {}).get(name, ()))).get(i)
                rows.append((len(where.speeds), name, took, 1e3 * seconds, told))
                log.info("%d devices, %s: %.1f s", len(where.speeds), name, took)
    return StudyResult("Seconds of the search", SEARCH_COLUMNS, tuple(rows))
