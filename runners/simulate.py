"""Predict an iteration of a profiled graph file without devices: `python -m runners.simulate --help`."""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from netsplit.config import build
from netsplit.errors import ConfigError
from runners._entry import entry, settings_of
from runners.partition import described, need_graph, one_partitioner

__all__ = ["Settings", "job", "main"]

log = logging.getLogger(__name__)

GROUPS = ("partitioner", "cluster", "schedule")
_WIDTH = 100  # columns of what goes to a file or a pipe


@dataclass(frozen=True)
class Settings:
    """The top-level keys of `conf/simulate.yaml`."""

    graph: str
    placement: str | None = None
    time_limit: float | None = 20.0
    seed: int = 0
    show_program: bool = False
    pieces: int = 10
    alpha: int | None = None
    inputs: Literal["free", "profiled"] = "free"
    picture: bool = True

    def __post_init__(self) -> None:
        if self.time_limit is not None and not (self.time_limit > 0 and math.isfinite(self.time_limit)):
            raise ConfigError(f"time_limit is {self.time_limit}: give more than 0 seconds, or null.")
        for key, value, least in (("seed", self.seed, 0), ("pieces", self.pieces, 1)):
            if value < least:
                raise ConfigError(f"{key} is {value}: give at least {least}.")


def job(cfg: DictConfig) -> float:
    """Everything from the composed config to the tables, the trace and the picture.

    Returns seconds of an iteration, which a sweep may minimise.
    """
    settings = _settings(cfg)
    partitioner = one_partitioner(cfg, settings.time_limit) if settings.placement is None else None
    schedule = build(cfg.schedule)
    cluster = described(cfg, "runners.simulate")
    folder = Path(HydraConfig.get().runtime.output_dir)

    from netsplit.formats.placements import read_placement
    from netsplit.formats.read import read_workload
    from netsplit.planning.decide import decide, verified
    from netsplit.simulate.trace import write_trace
    from runners._plan import Waiting
    from runners._simulated import show

    work = read_workload(settings.graph, settings.inputs)
    for remark in work.remarks:
        log.info("%s: %s", work.name, remark)
    problem = work.problem(
        cluster,
        "simulated",
        schedule=schedule,
        seed=settings.seed,
        time_limit_s=settings.time_limit,
        alpha=settings.alpha,
    )
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    if partitioner is None:
        plan = verified(problem, read_placement(settings.placement or "", problem), room=False)
    else:
        with Waiting(console, partitioner.name, settings.time_limit):
            plan = decide(problem, partitioner)
        log.info("%s: %s", plan.placement.method, plan.placement.report.summary())
    program, timeline = plan.simulated
    parts = "1 micro-batch" if program.microbatches == 1 else f"{program.microbatches} micro-batches"
    title = f"{work.name}, {plan.placement.method}, {schedule.name} with {parts}"
    console.print(title, style="bold", highlight=False, markup=False)
    show(console, problem, program, timeline, settings.pieces)
    if settings.show_program:
        console.print(program.show(), highlight=False, markup=False, soft_wrap=True)
    write_trace(folder / "trace.json", timeline, program=program)
    written = "trace.json"
    if settings.picture:
        from netsplit.tracking.pictures.timeline_figure import timeline_figure

        timeline_figure(timeline, None, folder / "timeline.png")
        written = "trace.json and timeline.png"
    console.print(f"Written to {folder}: {written}.", highlight=False, soft_wrap=True)
    return timeline.iteration_s


@entry(config_name="simulate")
def main(cfg: DictConfig) -> float:
    return job(cfg)


def _settings(cfg: DictConfig) -> Settings:
    need_graph(cfg)
    names = [field.name for field in fields(Settings)]
    settings: Settings = settings_of(cfg, "runners.simulate.Settings", names, GROUPS)
    return settings


if __name__ == "__main__":
    main()
