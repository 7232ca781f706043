"""Plan a profiled graph file without devices: `python -m runners.partition --help`."""

from __future__ import annotations

import json
import logging
import math
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from netsplit.cluster.described import ClusterDescription
from netsplit.config import TARGET, build, suggest
from netsplit.errors import ConfigError, InfeasibleError, NetSplitError
from netsplit.files import check_replaceable, write_text
from runners._entry import entry, option, options, settings_of

if TYPE_CHECKING:
    from netsplit.partition.base import Placement, Problem
    from netsplit.partition.partitioner import Partitioner
    from netsplit.planning.workload import Workload
    from runners._partition_settings import Settings

__all__ = ["described", "job", "main", "need_graph", "one_partitioner"]

log = logging.getLogger(__name__)

GROUPS = ("partitioner", "cluster", "schedule")
HERE = ("netsplit.cluster.local.", "netsplit.cluster.nvml.")  # builders of what workers run on
TIME_LIMIT = "time_limit_s"
_WIDTH = 110  # columns of a table that goes to a file or a pipe


def job(cfg: DictConfig) -> float:
    """Everything from the composed config to the table and `result.json`.

    Returns seconds of the objective, which a sweep may minimise.
    """
    settings = _settings(cfg)
    _check_own_result(cfg)
    partitioner = one_partitioner(cfg, settings.time_limit)
    schedule = build(cfg.schedule)
    cluster = described(cfg, "runners.partition")
    folder = Path(HydraConfig.get().runtime.output_dir)
    result = Path(settings.result) if settings.result is not None else folder / "result.json"

    from netsplit.formats.read import read_workload
    from netsplit.partition.objectives import CONTIGUOUS
    from netsplit.planning.decide import decide
    from runners._plan import Waiting, explain_plan, headline, show_moves, show_plan

    work = read_workload(settings.graph, settings.inputs)
    for remark in work.remarks:
        log.info("%s: %s", work.name, remark)
    problem = work.problem(
        cluster,
        CONTIGUOUS[settings.objective] if settings.contiguous else settings.objective,
        schedule=schedule,
        seed=settings.seed,
        time_limit_s=settings.time_limit,
        passes=settings.passes,
        alpha=settings.alpha,
        variable_copies=settings.variable_copies,
    )
    other = _other(settings, problem)
    _check_writable(result)
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    log.info("%s", headline(work, problem, partitioner))
    try:
        with Waiting(console, partitioner.name, settings.time_limit):
            plan = decide(problem, partitioner)
        work.check_supported(problem, plan.placement)
    except InfeasibleError as error:
        _write(result, _infeasible(settings, work, problem, partitioner, error))
        raise InfeasibleError(f"{error} (written to {result})") from error
    record = {"graph": settings.graph, **plan.to_dict(work.unit, work.unit_s)}
    show_plan(console, plan, work)
    _write(result, record)  # what follows may take long, or be interrupted
    if settings.explain:
        record["explanation"] = explain_plan(console, plan, partitioner, settings.time_limit)
    if other is not None:
        record["compared_with"] = show_moves(console, plan, other, work, settings.time_limit)
    if settings.explain or other is not None:
        _write(result, record)
    console.print(f"Written to {result}.", highlight=False, soft_wrap=True)
    return plan.objective_s


@entry(config_name="partition")
def main(cfg: DictConfig) -> float:
    return job(cfg)


def _settings(cfg: DictConfig) -> Settings:
    need_graph(cfg)

    from runners._partition_settings import Settings

    names = [field.name for field in fields(Settings)]
    settings: Settings = settings_of(cfg, "runners._partition_settings.Settings", names, GROUPS)
    return settings


def need_graph(cfg: DictConfig) -> None:
    """Raises ConfigError: the command line gives no graph file."""
    how = "the path of a graph file, as in graph=vgg16.txt."
    if "graph" not in cfg:  # so it is where ??? was left
        raise ConfigError(f"graph must be given: {how}")
    if isinstance(cfg.graph, str) and not cfg.graph.strip():
        raise ConfigError(f"graph is empty: give {how}")


def one_partitioner(cfg: DictConfig, time_limit: float | None) -> Partitioner:
    """The method that the command line chooses, with `time_limit` for its own where that is not given."""
    chosen = cfg.get("partitioner") or {}
    if len(chosen) != 1:
        names = ", ".join(map(str, chosen)) or "none"
        raise ConfigError(
            f"partitioner chooses {names}: give exactly one, as in partitioner=m_topo, or sweep over several "
            "with --multirun partitioner=m_topo,single."
        )
    ((name, node),) = chosen.items()
    return _with_limit(build(node), str(name), time_limit)


def _with_limit(partitioner: Any, name: str, time_limit: float | None) -> Partitioner:
    """The method's own time limit follows `time_limit`, unless the command line sets it."""
    own = f"partitioner.{name}.{TIME_LIMIT}="
    given = any(word.lstrip("+").startswith(own) for word in HydraConfig.get().overrides.task)
    if time_limit is not None and hasattr(partitioner, TIME_LIMIT) and not given:
        partitioner = replace(partitioner, **{TIME_LIMIT: time_limit})
    return partitioner


def described(cfg: DictConfig, command: str) -> ClusterDescription | None:
    """The cluster that is described, or None for the file's own; `command` names who asks."""
    node = cfg.get("cluster")
    if node is None:
        return None
    here = str(node.get(TARGET, "")).startswith(HERE)
    description = None if here else build(node)  # GPUs that are not there would be refused for that
    if not isinstance(description, ClusterDescription):
        raise ConfigError(
            f"cluster={HydraConfig.get().runtime.choices.get('cluster')} is made of workers on this machine, "
            f"which {command} does not start: choose cluster=uniform, mixed3 or mixed4."
        )
    return description


def _other(settings: Settings, problem: Problem) -> Partitioner | Placement | None:
    """What `compare_with` names: a method, or an earlier plan."""
    name = settings.compare_with
    if name is None:
        return None
    known = options("partitioner")
    if name in known:
        return _with_limit(build(option("partitioner", name)), name, settings.time_limit)
    if not Path(name).is_file():
        raise ConfigError(
            f"compare_with is '{name}', neither a file nor a partitioner: {suggest(name, known)}"
        )

    from netsplit.formats.placements import read_placement

    return replace(read_placement(name, problem, "compare_with"), method="earlier plan")


def _infeasible(
    settings: Settings, work: Workload, problem: Problem, partitioner: Partitioner, error: InfeasibleError
) -> dict[str, Any]:

    return {
        "graph": settings.graph,
        "method": partitioner.name,
        "status": "infeasible",
        "objective_name": problem.objective.name,
        "objective": None,
        "bound": None,
        "gap": None,
        "unit": work.unit,
        "seconds": None,
        "seed": settings.seed,
        "cluster": problem.cluster.name,
        "device_of": {},
        "per_device": {
            device.name: {"seconds": None, "bytes": None, "capacity": device.capacity_bytes}
            for device in problem.cluster.devices
        },
        "message": " ".join(str(error).split()),
    }


def _check_writable(path: Path) -> None:
    """Before the decision, which may take long."""
    try:
        check_replaceable(path)
    except NetSplitError as error:
        raise ConfigError(f"result cannot be written: {error}") from error
    nearest = next(parent for parent in path.resolve().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise ConfigError(
            f"result is '{path}', and '{nearest}' is no folder to write in: give another path."
        ) from error


def _check_own_result(cfg: DictConfig) -> None:
    """Refuse several jobs that would write one file, of which the last alone would be left."""
    given = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(given, dict)
    path = given.get("result")
    if HydraConfig.get().mode != RunMode.MULTIRUN or path is None or "${" in str(path):
        return
    words = [word for word in sys.argv[1:] if "=" in word and not word.startswith("-")]
    overrides = OverridesParser.create().parse_overrides(words)
    if {each.key_or_group for each in overrides if each.is_sweep_override()} - {"result"}:
        raise ConfigError(
            f"result is '{path}' for all jobs of the multirun: give each its own, as in "
            "result='out/${hydra:job.num}.json', or leave it out."
        )


def _write(path: Path, record: dict[str, Any]) -> None:
    """Strict JSON: what is not finite has no place in it."""
    write_text(path, json.dumps(_finite(record), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()
