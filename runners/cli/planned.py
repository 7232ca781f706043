"""What `runners.plan` does: decides without starting a device, shows the whole plan, and writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec
from netsplit.config import build
from netsplit.data.reading.own import as_data
from netsplit.errors import InfeasibleError
from netsplit.files import write_json
from netsplit.formats.read import read_workload
from netsplit.partition.partitioner import Partitioner
from netsplit.pictures.timeline_figure import timeline_figure
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.measure.optimizer import check_optimizer
from netsplit.program.schedules import Schedule
from netsplit.session.costs import FileCosts, PredictedCosts
from netsplit.session.decision import plan_ahead
from netsplit.session.request import without_reading
from netsplit.session.step import ModelStep
from netsplit.settings import OffloadName
from netsplit.tracking.records import write_plan, write_whole
from netsplit.tracking.table import ONE_DEVICE, ComparisonRow, verdict_of
from netsplit.training.options import Training

from .._entry import console_of
from .._graph_file import PlanSettings
from .._progress import Waiting

__all__ = ["by_config", "by_file", "run", "show_whole"]


Decide = Callable[[Schedule | AutoSchedule, Partitioner, int], Plan]


def by_config(settings: PlanSettings, cfg: DictConfig, cluster: ClusterSpec | ClusterDescription) -> Decide:
    """A planner for the training step of the config's groups, without values.

    Raises:
        ConfigError: one of them cannot be built, or there are no rates of a device.
    """
    offload = settings.offload or "none"
    source = PredictedCosts.for_cluster(cluster, settings.autocast, offload)
    cfg, reading = without_reading(cfg)
    reading.setdefault("seed", settings.seed)
    keys = build(OmegaConf.create({"dataset": reading}).dataset)
    data = as_data(build(cfg.dataset), "dataset", keys)
    optimizer = build(cfg.optimizer)
    with torch.device("meta"):
        model, loss = build(cfg.model), build(cfg.loss)
    check_optimizer(optimizer)
    training = Training(
        optimizer, ema_decay=settings.ema_decay, clip_norm=settings.clip_norm, autocast=settings.autocast,
        seed=settings.seed, offload=offload,
    )  # fmt: skip
    step = ModelStep(model, loss, data.shapes(settings.batch_size), training, source.device_type)
    return lambda schedule, method, seed: plan_ahead(step, source, schedule, method)


def by_file(
    graph: str,
    microbatches: int,
    cluster: ClusterSpec | ClusterDescription | None,
    offload: OffloadName | None,
) -> Decide:
    """A planner for a graph file's profile."""
    described = cluster.unprobed if isinstance(cluster, ClusterSpec) else cluster
    return FileCosts(read_workload(graph), described, microbatches, offload).plan


def run(
    decide: Decide,
    schedule: Schedule | AutoSchedule,
    method: Partitioner,
    seed: int,
    folder: Path,
    train: str = "",
) -> float:
    """Plan, print the tables and write the files; predicted seconds of an iteration.

    Args:
        train: the command that trains by such a plan; "": there is none.
    """
    console = console_of()
    try:
        with Waiting(console, "plan", None, "is being made"):  # whose parts say themselves what they do
            plan = decide(schedule, method, seed)
    except InfeasibleError as error:
        write_json(folder / "plan.json", {"status": "infeasible", "reason": " ".join(str(error).split())})
        raise
    show_whole(console, plan)
    write_whole(plan, folder)
    files = ", ".join(write_plan(plan, folder))
    timeline_figure(plan.simulated[1], None, folder / "timeline.png")
    console.print(
        f"Written to {folder}: plan.json, frontier.txt, {files}, timeline.png.",
        highlight=False,
        soft_wrap=True,
    )
    last = f"{_verdict(plan)}{f' To train with it: {train}' if train else ''}"
    console.print(last, style="bold", highlight=False, markup=False, soft_wrap=True)
    return plan.iteration_s


def _verdict(plan: Plan) -> str:
    """The chosen plan compared with the best of each other kind."""
    rates = {row.kind: row.samples_per_s or 0.0 for row in reversed(plan.choice.frontier)}
    rates[plan.choice.frontier[0].kind] = plan.samples_per_s
    names = {"operators": "the plan by operators", "parts": "the plan in parts", ONE_DEVICE: ONE_DEVICE}
    named = {names.get(kind, f"the {kind} plan"): rate for kind, rate in rates.items()}
    said = verdict_of([ComparisonRow(name, "", throughput=rate) for name, rate in named.items()])
    return said[:1].upper() + said[1:]


def show_whole(console: Console, plan: Plan, remarks: bool = True) -> None:
    """Print the choice, a row per device, and the alternatives.

    Args:
        remarks: also what the choice changes of what is trained; False where that was said before.
    """
    lines = [line for line in plan.lines if remarks or line not in plan.choice.remarks]
    for style, line in zip(["bold", *[""] * len(lines)], lines, strict=False):
        console.print(escape(line), style=style, highlight=False, soft_wrap=True)
    console.print(plan.summary().devices.terminal())
    table = plan.choice.table
    console.print(table.title, highlight=False)
    console.print("\n".join(table.lines()), highlight=False, markup=False, soft_wrap=True)
    for line in plan.choice.absent:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
