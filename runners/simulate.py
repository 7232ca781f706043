"""Predict an iteration of a profiled graph file without devices: `python -m runners.simulate --help`."""

from __future__ import annotations

import json
import logging
import math
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from netsplit.config import build
from netsplit.errors import ConfigError
from runners._entry import entry, settings_of
from runners.partition import described, need_graph, one_partitioner

if TYPE_CHECKING:
    from netsplit.partition.base import Placement, Problem

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

    from netsplit.formats.read import read_workload
    from netsplit.planning.decide import check, decide
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
        plan = check(problem, _placement(settings.placement or "", problem), room=False)
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
    found: Settings = settings_of(cfg, "runners.simulate.Settings", names, GROUPS)
    return found


def _placement(name: str, problem: Problem) -> Placement:
    """What a comparison wrote as `placement.json`, or `runners.partition` as `result.json`."""
    from netsplit.partition.base import Placement, SolverReport, Stage
    from netsplit.partition.common.priority import topological_priority
    from netsplit.planning.verify import verify

    try:
        found = json.loads(Path(name).read_text(encoding="utf-8"))
        device_of = {str(node): str(device) for node, device in found["device_of"].items()}
        priority = _priority(found.get("priority") or {})
        stages = tuple(
            Stage(
                tuple(map(str, stage["nodes"])),
                tuple(map(str, stage["devices"])),
                int(stage.get("warm_up", 0)),
            )
            for stage in found.get("stages") or ()
        )
        method = str(found.get("method", "given"))
    except FileNotFoundError as error:
        raise ConfigError(f"placement is '{name}', which is not there.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"placement is '{name}', which is no placement.json or result.json ({error})."
        ) from error
    graph, devices = problem.graph, [device.name for device in problem.cluster.devices]
    strange = next((node for node in graph.nodes if node not in device_of), None)
    strange = strange or next((node for node in device_of if node not in graph.nodes), None)
    if strange is not None:
        raise ConfigError(
            f"placement is '{name}', of another graph: node '{strange}' is in one of them only."
        )
    used = dict.fromkeys([*device_of.values(), *(device for stage in stages for device in stage.devices)])
    absent = next((device for device in used if device not in devices), None)
    if absent is not None:
        raise ConfigError(
            f"placement is '{name}', which uses device '{absent}': the cluster has {', '.join(devices)}."
        )
    priority = priority or topological_priority(graph, graph.position)
    placement = Placement(method, device_of, priority, SolverReport("heuristic", 0.0), stages)
    wrong = verify(
        replace(problem, objective=problem.objective.relaxed()), placement, capacity=False
    ).violations
    if wrong:
        raise ConfigError(f"placement is '{name}', which does not hold: {wrong[0]}")
    return placement


def _priority(given: Any) -> dict[str, int]:
    if isinstance(given, dict):
        return {str(node): int(rank) for node, rank in given.items()}
    return {str(node): rank for rank, node in enumerate(given)}


if __name__ == "__main__":
    main()
