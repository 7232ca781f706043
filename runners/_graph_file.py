"""What commands that take a graph file are told: settings, the file, one method, a cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

import netsplit
from netsplit.config import build
from netsplit.errors import ConfigError, NetSplitError
from netsplit.settings import LowPrecision, ObjectiveName, OffloadName, check_numbers
from netsplit.signature import TARGET

from ._entry import settings_of

if TYPE_CHECKING:
    from netsplit.cluster.described import ClusterDescription
    from netsplit.partition.base import MemoryRule
    from netsplit.partition.partitioner import Partitioner
    from netsplit.planning.workload import Workload
    from netsplit.program.schedules import Schedule

__all__ = [
    "GraphSettings",
    "PartitionSettings",
    "PlanSettings",
    "SimulateSettings",
    "described",
    "graph_settings",
    "need_graph",
    "one_partitioner",
    "one_schedule",
    "with_limit",
]

GROUPS = ("partitioner", "cluster", "schedule")
HERE = "netsplit.cluster.local."  # builders of what workers run on
TIME_LIMIT = "time_limit_s"


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """Top-level keys that both commands have."""

    graph: str
    time_limit: float | None = None
    seed: int = 0
    alpha: int | None = None
    memory: Literal["static", "lifetimes"] | None = None
    offload: OffloadName | None = None
    inputs: Literal["free", "profiled"] = "free"

    def __post_init__(self) -> None:
        if self.time_limit is not None and not (self.time_limit > 0 and math.isfinite(self.time_limit)):
            raise ConfigError(f"time_limit is {self.time_limit}: give more than 0 seconds, or null.")
        self.at_least(0, "seed")

    def at_least(self, least: int, key: str) -> None:
        if getattr(self, key) < least:
            raise ConfigError(f"{key} is {getattr(self, key)}: give at least {least}.")


@dataclass(frozen=True, kw_only=True)
class SimulateSettings(GraphSettings):
    """The top-level keys of `conf/simulate.yaml`."""

    placement: str | None = None
    show_program: bool = False
    pieces: int = 10
    picture: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(1, "pieces")


@dataclass(frozen=True, kw_only=True)
class PartitionSettings(GraphSettings):
    """The top-level keys of `conf/partition.yaml`."""

    objective: ObjectiveName = "latency"
    passes: Literal["training", "forward"] = "training"
    variable_copies: int | None = None
    result: str | None = None
    explain: bool = False
    compare_with: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.result is not None and Path(self.result).resolve() == Path(self.graph).resolve():
            raise ConfigError(
                f"result is '{self.result}', which is the graph file itself: give another path."
            )
        if self.result is not None and (not self.result or Path(self.result).is_dir()):
            raise ConfigError(f"result is '{self.result}': give the path of a file to write.")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The top-level keys of `conf/plan.yaml`."""

    batch_size: int = 64
    seed: int = 0
    clip_norm: float | None = None
    autocast: LowPrecision | None = None
    ema_decay: float | None = None
    offload: OffloadName | None = None
    graph: str | None = None
    microbatches: int = 1

    def __post_init__(self) -> None:
        check_numbers(batch_size=self.batch_size, seed=self.seed, microbatches=self.microbatches)
        check_numbers(clip_norm=self.clip_norm, ema_decay=self.ema_decay)
        if self.graph is None and self.microbatches != 1:
            raise ConfigError(
                f"microbatches is {self.microbatches}, which is only for graph=<file>: give "
                "schedule.microbatches."
            )


def memory_rule(settings: GraphSettings, work: Workload, of_a_step: bool) -> MemoryRule:
    """The chosen rule; by default lifetimes, if the file has them and the plan is `of_a_step`.

    Raises:
        ConfigError: lifetimes are asked for, and the file has none.
    """
    if settings.memory == "lifetimes" and not work.knows_lifetimes:
        raise ConfigError(
            f"memory is lifetimes, but {settings.graph} does not list the saved activations, as graph "
            "files of captured models do: give memory=static."
        )
    return settings.memory or ("lifetimes" if of_a_step and work.knows_lifetimes else "static")


def need_graph(cfg: DictConfig) -> None:
    """Raises NetSplitError if the command line gives no graph file, or a missing one."""
    how = "the path of a graph file, as in graph=vgg16.txt."
    if "graph" not in cfg:  # where ??? was left
        raise ConfigError(f"graph must be given: {how}")
    if isinstance(cfg.graph, str) and not cfg.graph.strip():
        raise ConfigError(f"graph is empty: give {how}")
    if isinstance(cfg.graph, str) and not Path(cfg.graph).exists():
        raise NetSplitError(f"graph file '{cfg.graph}' does not exist.")


def graph_settings(cfg: DictConfig, kind: type[GraphSettings]) -> Any:
    """The command's own keys as its settings.

    Raises:
        ConfigError: an unknown key, or a value that cannot be used.
    """
    owner = f"{kind.__module__}.{kind.__qualname__}"
    return settings_of(cfg, owner, [field.name for field in fields(kind)], GROUPS)


def one_schedule(cfg: DictConfig) -> Schedule:
    """The schedule that is chosen.

    Raises:
        ConfigError: it is to be decided, with the micro-batches.
    """
    schedule: Schedule | netsplit.AutoSchedule = build(cfg.schedule)
    if schedule.decides_everything:
        raise ConfigError(
            "schedule=auto also decides the micro-batches, which a graph file fixes: name a schedule, as "
            "in schedule=1f1b, or run `netsplit plan graph=<file>`."
        )
    return schedule


def one_partitioner(cfg: DictConfig, time_limit: float | None) -> Partitioner:
    """The chosen method, with `time_limit` as its own unless given."""
    chosen = cfg.get("partitioner") or {}
    if len(chosen) != 1:
        names = ", ".join(map(str, chosen)) or "none"
        raise ConfigError(
            f"partitioner chooses {names}: give exactly one, as in partitioner=m_topo, or sweep over several "
            "with --multirun partitioner=m_topo,single."
        )
    ((name, node),) = chosen.items()
    return with_limit(build(node), str(name), time_limit)


def with_limit(partitioner: Any, name: str, time_limit: float | None) -> Partitioner:
    """Set the method's own time limit to `time_limit`, unless the command line sets it."""
    own = f"partitioner.{name}.{TIME_LIMIT}="
    stated = any(word.lstrip("+").startswith(own) for word in HydraConfig.get().overrides.task)
    if time_limit is not None and getattr(partitioner, TIME_LIMIT, None) is not None and not stated:
        partitioner = replace(partitioner, **{TIME_LIMIT: time_limit})
    return partitioner


def described(cfg: DictConfig, command: str) -> ClusterDescription | None:
    """The described cluster, or None for the file's own; `command` is for the error."""
    from netsplit.cluster.described import ClusterDescription

    node = cfg.get("cluster")
    if node is None:
        return None
    is_local = str(node.get(TARGET, "")).startswith(HERE)
    description = None if is_local else build(node)  # building would refuse missing GPUs first
    if not isinstance(description, ClusterDescription):
        raise ConfigError(
            f"cluster={HydraConfig.get().runtime.choices.get('cluster')} needs workers, which {command} "
            "does not start: choose cluster=uniform, mixed3 or mixed4."
        )
    return description
