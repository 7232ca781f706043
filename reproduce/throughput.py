"""Predicted throughput of methods on described devices, beside printed figures (the thesis's Table 6-4)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from math import isnan
from typing import TYPE_CHECKING, Any

import torch

from netsplit.cluster.described import ClusterDescription
from netsplit.config import build
from netsplit.errors import ConfigError, NetSplitError
from netsplit.partition.partitioner import Partitioner
from netsplit.program.schedules import SingleBatch
from netsplit.session.comparison import Experiment, described
from netsplit.settings import Settings
from netsplit.tables import Cell, Column
from reproduce.cases import ByName, ModelCase
from reproduce.result import Picture, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["kendall_tau", "throughputs"]

log = logging.getLogger(__name__)

NEAR = 0.2
"""Relative difference within which a figure counts as met."""

COLUMNS = (
    Column("case", text=True),
    Column("method", text=True),
    Column("samples/s", ".2f"),
    Column("printed", ".2f"),
    Column("difference (%)", "+.0f", 100.0),
    Column("status", text=True),
    Column("gap (%)", ".2f", 100.0),
    Column("decided in (s)", ",.1f"),
    Column("over", text=True),
)


def throughputs(
    cases: ByName[ModelCase],
    methods: dict[str, Any],
    cluster: ClusterDescription,
    optimizer: Callable[..., torch.optim.Optimizer],
    variable_copies: int | None = None,
    seed: int = 0,
) -> StudyResult:
    """Samples per second of every method in every case, one batch at a time, within the static count.

    Args:
        cases: `reference` has the printed samples per second by method.
        methods: name -> what a partitioner is built of, as an option of conf/partitioner.
        variable_copies: how often a variable counts in bytes.
        seed: of methods.

    Raises:
        CaptureError: a case cannot be captured.
        ConfigError: a method that cannot be built, or none.
    """
    if not methods:
        raise ConfigError("study.methods is empty: give at least one, as in experiment/table_6_4.yaml.")
    partitioners: dict[str, Partitioner] = {name: build(each) for name, each in methods.items()}
    rows: list[tuple[Cell, ...]] = []
    notes = ["over: the devices whose memory the simulated peak exceeds."]
    reached: dict[str, dict[str, float]] = {}
    for name, case in cases.items():
        settings = Settings(
            epochs=1, batch_size=case.batch_size, seed=seed, memory="static", variable_copies=variable_copies
        )
        with torch.device("meta"):
            model = case.model()
        experiment = Experiment(
            name, model, case.loss, case.dataset, partitioners, SingleBatch(), optimizer, settings
        )
        shared, own = described(experiment, cluster), reached.setdefault(name, {})
        for method, partitioner in partitioners.items():
            printed = case.reference.get(method)
            try:
                plan = shared.plan(partitioner)
            except NetSplitError as error:
                log.error("%s, %s: %s", name, method, error)
                rows.append((case.label or name, method, None, printed, None, "failed", None, None, ""))
                continue
            report = plan.placement.report
            over = ", ".join(device for device, load in plan.loads.items() if _is_over(plan, device))
            rate = None if report.status == "limit" else case.batch_size / plan.iteration_s
            if rate is not None:
                own[method] = rate
            difference = rate / printed - 1 if rate and printed else None
            row = (rate, printed, difference, report.status, report.gap, report.seconds, over)
            rows.append((case.label or name, method, *row))
        notes += _agreement(case.label or name, own, case.reference)
    metrics = {f"{method}.{name}": rate for name, own in reached.items() for method, rate in own.items()}
    title = "Samples per second, planned and printed"
    return StudyResult(title, COLUMNS, tuple(rows), tuple(notes), (_picture(reached, partitioners),), metrics)


def _is_over(plan: Any, device: str) -> bool:
    peaks: Mapping[str, int] = plan.simulated[1].peak_bytes
    return peaks.get(device, 0) > plan.problem.cluster.device(device).capacity_bytes


def _agreement(name: str, ours: Mapping[str, float], printed: Mapping[str, float]) -> Iterator[str]:
    methods = [method for method in ours if method in printed]
    if len(methods) < 2:
        return
    pairs = [(ours[method], printed[method]) for method in methods]
    within = sum(abs(a / b - 1) <= NEAR for a, b in pairs)
    tau = kendall_tau(*([pair[side] for pair in pairs] for side in (0, 1)))
    order = "-" if tau is None else f"{tau:+.2f}"
    yield f"{name}: {within} of {len(pairs)} within {100 * NEAR:.0f} %, Kendall's tau of the order {order}"


def kendall_tau(ours: list[float], theirs: list[float]) -> float | None:
    """Kendall's tau-b; figures that are equal when rounded to 0.01 are ties. None where all of a side are.

    Source: M. G. Kendall, The treatment of ties in ranking problems, Biometrika 33, 1945.
    """
    from scipy.stats import kendalltau

    sides = [[round(100 * each) for each in side] for side in (ours, theirs)]
    tau = float(kendalltau(*sides).statistic)
    return None if isnan(tau) else tau


def _picture(reached: Mapping[str, Mapping[str, float]], methods: Mapping[str, object]) -> Picture:
    names = list(reached)
    width = 0.8 / len(methods)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, method in enumerate(methods):
            places = [at + (index - (len(methods) - 1) / 2) * width for at in range(len(names))]
            heights = [reached[name].get(method, 0.0) for name in names]
            axes.bar(places, heights, 0.92 * width, label=method)
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("samples per second")
        axes.legend(frameon=False)

    rows = [(name, *(own.get(method) for method in methods)) for name, own in reached.items()]
    return Picture("throughputs", (12.0, 5.0), draw, ("case", *methods), rows)
