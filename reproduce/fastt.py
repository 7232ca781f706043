"""OS-DPOS against data parallelism on described devices, as FastT was evaluated (Middleware 2020, 6)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.errors import ConfigError, InfeasibleError
from netsplit.graph.quotient import topological_priority
from netsplit.optim.optimizers import MOMENTUM
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.baselines import Ddp
from netsplit.partition.methods.list_schedulers import fifo_starts
from netsplit.partition.methods.os_dpos import OsDpos
from netsplit.planning.decide import verified
from netsplit.planning.plan import Plan
from netsplit.program.schedules import GPipe, Schedule, SingleBatch
from netsplit.rewrite import CopyWeights, Rewrite, Split, rewrite_from
from netsplit.session.comparison import Experiment, Shared, described
from netsplit.settings import Settings
from netsplit.tables import Cell, Column
from reproduce.cases import ByName, ModelCase, check_references
from reproduce.result import StudyResult

__all__ = ["V100Servers", "described_case", "fits", "largest_batches", "split_speeds"]

log = logging.getLogger(__name__)

Scaling = Literal["strong", "weak"]

COLUMNS = (
    Column("case", text=True),
    Column("scaling", text=True),
    Column("devices", "d"),
    Column("batch", ",d"),
    Column("data parallel (samples/s)", ",.1f"),
    Column("os_dpos (samples/s)", ",.1f"),
    Column("gain (%)", "+.1f", 100.0),
    Column("begins with", text=True),
    Column("answers", text=True),
    Column("splits", text=True),
    Column("order's gain (%)", ".1f", 100.0),
    Column("decided in (s)", ",.1f"),
)
NOTES = (
    "Planned: operator times are predicted, iterations simulated.",
    "data parallel: a model replica on each device; os_dpos: one batch, with split operators.",
    "begins with, answers: the whole graph, data parallelism placed by DPOS, replicas side by side,",
    "or, in addition, splits of the critical path.",
    "order's gain: how much shorter an iteration is than when operators run as they become ready.",
    "-: does not fit.",
)


@dataclass(frozen=True)
class V100Servers:
    """Servers of V100 with 16 GB, by default as the paper has them: eight a server, joined by NVLink.

    Args:
        a_server: devices of one server.
        inside: bytes per second between two of a server.
        between: and between those of two servers.
        inside_latency_s: seconds of a message's own.
        between_latency_s: and between servers.
    """

    a_server: int = 8
    inside: float = 45e9
    between: float = 1.15e9
    inside_latency_s: float = 1e-5
    between_latency_s: float = 5e-5

    def of(self, devices: int) -> ClusterDescription:
        """So many of them.

        Raises:
            ConfigError: more than one server, and not all of them full.
        """
        name, model = f"v100x{devices}", "V100-SXM2-16GB"
        if devices <= self.a_server:
            return uniform_cluster(
                devices, self.inside, latency=self.inside_latency_s, name=name, model=model
            )
        servers, rest = divmod(devices, self.a_server)
        if rest:
            raise ConfigError(f"{devices} devices do not fill servers of {self.a_server}: give a multiple.")
        return uniform_cluster(
            [self.a_server, servers],
            [self.inside, self.between],
            latency=[self.inside_latency_s, self.between_latency_s],
            name=name,
            model=model,
        )


def split_speeds(
    cases: ByName[ModelCase],
    servers: V100Servers | None = None,
    devices: Sequence[int] = (2, 4, 8, 16),
    scalings: Sequence[Scaling] = ("strong", "weak"),
    time_limit_s: float = 300.0,
    seed: int = 0,
) -> StudyResult:
    """Samples per second of OS-DPOS and of data parallelism, on more and more devices.

    Args:
        cases: `batch_size` is that of all devices under strong scaling, and of each under weak scaling.
        servers: None: as `V100Servers`.
        devices: how many, each in turn.
        scalings: strong, weak or both.
        time_limit_s: of each decision of OS-DPOS.
        seed: of methods.

    Raises:
        CaptureError: a case cannot be captured.
        ConfigError: unknown scaling, or devices that are no whole servers.
    """
    check_references(cases)
    for each in scalings:
        if each not in ("strong", "weak"):
            raise ConfigError(f"study.scalings has {each}: give strong, weak or both.")
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for name, case in cases.items():
        for scaling in scalings:
            for n in devices:
                batch = case.batch_size * (n if scaling == "weak" else 1)
                cluster = (servers or V100Servers()).of(n)
                row = _compared(case, cluster, n, batch, time_limit_s, seed)
                log.info("%s, %s scaling, %d devices: %s", name, scaling, n, row)
                rows.append((case.label or name, scaling, n, batch, *row))
                for key, cell in zip(("ddp", "os_dpos", "gain"), row, strict=False):
                    if isinstance(cell, float):
                        metrics[f"{key}.{name}.{scaling}.{n}"] = cell
    return StudyResult(
        "Split operators against data parallelism", COLUMNS, tuple(rows), NOTES, metrics=metrics
    )


def _compared(
    case: ModelCase, cluster: ClusterDescription, n: int, batch: int, limit_s: float, seed: int
) -> tuple[Cell, ...]:
    replicated = described_case(case, cluster, batch, GPipe(n), seed).plan(Ddp())
    ddp_s = replicated.objective_s if fits(replicated) else None
    try:
        plan = described_case(case, cluster, batch, SingleBatch(), seed).plan(OsDpos(time_limit_s=limit_s))
    except InfeasibleError:
        return (batch / ddp_s if ddp_s else None, None, None, "", "", "", None, None)
    notes = plan.placement.report.notes
    return (
        batch / ddp_s if ddp_s else None,
        batch / plan.objective_s,
        ddp_s / plan.objective_s - 1 if ddp_s else None,
        str(notes["start"]),
        str(notes["answered"]),
        in_words([rewrite_from(each) for each in plan.placement.report.notes["splits"]]),
        _order_gain(plan),
        plan.seconds,
    )


def described_case(
    case: ModelCase, cluster: ClusterDescription, batch: int, schedule: Schedule, seed: int = 0
) -> Shared:
    """A case on described devices, with predicted costs; its modules write nothing in place.

    Raises:
        CaptureError: the case cannot be captured.
    """
    with torch.device("meta"):
        model = case.model()
    experiment = Experiment(
        name=cluster.name,
        model=out_of_place(model),
        loss=case.loss,
        data=case.dataset,
        partitioners={},
        schedule=schedule,
        optimizer=MOMENTUM,
        settings=Settings(epochs=1, batch_size=batch, seed=seed),
    )
    return described(experiment, cluster)


def out_of_place(model: nn.Module) -> nn.Module:
    """The model with modules that write nothing in place: what is written over cannot be cut alone."""
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False  # type: ignore[assignment]
    return model


def fits(plan: Plan) -> bool:
    _, timeline = plan.simulated
    capacity = {device.name: device.capacity_bytes for device in plan.problem.cluster.devices}
    return all(nbytes <= capacity[name] for name, nbytes in timeline.peak_bytes.items())


def _order_gain(plan: Plan) -> float:
    """How much less the iteration takes than with operators in the order in which they become ready."""
    instance = Instance.of(plan.problem)
    starts = fifo_starts(instance, instance.encode(plan.placement.device_of).tolist())
    queued = replace(plan.placement, priority=topological_priority(plan.problem.graph, starts))
    return 1 - plan.objective_s / verified(plan.problem, queued, bound_limit_s=0.1).objective_s


def in_words(rewrites: Sequence[Rewrite]) -> str:
    """As "conv2d_3 along 0 in 4 with copied weights, conv2d_4 along 1 in 2"."""
    copied = {each.node.rpartition(":")[0] for each in rewrites if isinstance(each, CopyWeights)}
    splits = [
        f"{each.node} along {each.axis} in {len(each.sizes)}{' with copied weights' * (each.node in copied)}"
        for each in rewrites
        if isinstance(each, Split)
    ]
    return ", ".join(splits) or "none"


BATCH_COLUMNS = (
    Column("case", text=True),
    Column("devices", "d"),
    Column("data parallel", "d"),
    Column("os_dpos", "d"),
    Column("printed: data parallel", "d"),
    Column("printed: FastT", "d"),
)


def largest_batches(
    cases: ByName[ModelCase],
    servers: V100Servers | None = None,
    devices: Sequence[int] = (1, 2),
    batches: Sequence[int] = (8, 16, 24, 32, 40, 48, 56, 64),
    time_limit_s: float = 60.0,
    seed: int = 0,
) -> StudyResult:
    """The largest of some batches that fits, by lifetimes, on one device and on more.

    Args:
        cases: `reference` may have ``data_parallel`` and ``fastt``, of the last number of devices.
        batches: that are tried, from the largest on; of all devices together.
        servers, devices, time_limit_s, seed: as for `split_speeds`.

    Raises:
        CaptureError: a case cannot be captured.
    """
    check_references(cases, "data_parallel", "fastt")
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for name, case in cases.items():
        for n in devices:
            cluster = (servers or V100Servers()).of(n)
            largest: dict[str, int] = {}
            for batch in sorted(batches, reverse=True):
                if "ddp" not in largest and _replicas_fit(case, cluster, n, batch, seed):
                    largest["ddp"] = batch
                if "os_dpos" not in largest and _splits_fit(case, cluster, batch, time_limit_s, seed):
                    largest["os_dpos"] = batch
            printed = case.reference if n == devices[-1] else {}
            both = [int(printed[key]) if key in printed else None for key in ("data_parallel", "fastt")]
            rows.append((case.label or name, n, largest.get("ddp"), largest.get("os_dpos"), *both))
            metrics |= {f"batch.{key}.{name}.{n}": float(batch) for key, batch in largest.items()}
    notes = ("Planned: bytes from predicted tensor lifetimes.", "-: none of the batches tried.")
    return StudyResult("The largest batch that fits", BATCH_COLUMNS, tuple(rows), notes, metrics=metrics)


def _replicas_fit(case: ModelCase, cluster: ClusterDescription, n: int, batch: int, seed: int) -> bool:
    if batch % n:
        return False
    return fits(described_case(case, cluster, batch, GPipe(n), seed).plan(Ddp()))


def _splits_fit(case: ModelCase, cluster: ClusterDescription, batch: int, limit_s: float, seed: int) -> bool:
    try:
        described_case(case, cluster, batch, SingleBatch(), seed).plan(OsDpos(time_limit_s=limit_s))
    except InfeasibleError as refusal:
        log.info("%d samples on %s: %s", batch, cluster.name, refusal)
        return False
    return True
