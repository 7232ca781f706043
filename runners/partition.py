"""Plan a profiled graph file without devices: `netsplit partition --help`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build
from netsplit.errors import ConfigError
from netsplit.signature import suggest

from ._entry import entry, option, options
from ._graph_file import (
    PartitionSettings,
    described,
    graph_settings,
    need_graph,
    one_partitioner,
    one_schedule,
    with_limit,
)

if TYPE_CHECKING:
    from netsplit.partition.partitioner import Partitioner

__all__ = ["job", "main"]


def job(cfg: DictConfig) -> float:
    """Everything from the composed config to the table and `result.json`.

    Returns seconds of the objective, which a sweep may minimise.
    """
    need_graph(cfg)
    _check_own_result(cfg)

    settings: PartitionSettings = graph_settings(cfg, PartitionSettings)
    partitioner = one_partitioner(cfg, settings.time_limit)
    schedule = one_schedule(cfg)
    cluster = described(cfg, "netsplit partition")
    other = _other(settings)
    folder = Path(HydraConfig.get().runtime.output_dir)
    result = Path(settings.result) if settings.result is not None else folder / "result.json"

    from . import _partitioned

    return _partitioned.run(settings, partitioner, schedule, cluster, other, result)


main = entry(config_name="partition")(job)


def _other(settings: PartitionSettings) -> Partitioner | Path | None:
    """The method or earlier plan that `compare_with` names."""
    name = settings.compare_with
    if name is None:
        return None
    known = options("partitioner")
    if name in known:
        return with_limit(build(option("partitioner", name)), name, settings.time_limit)
    if not Path(name).is_file():
        raise ConfigError(
            f"compare_with is '{name}', neither a file nor a partitioner: {suggest(name, known)}"
        )
    return Path(name)


def _check_own_result(cfg: DictConfig) -> None:
    """Refuse several jobs that would overwrite one file."""
    raw = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(raw, dict)
    path = raw.get("result")
    if HydraConfig.get().mode != RunMode.MULTIRUN or path is None or "${" in str(path):
        return
    words = [word for word in sys.argv[1:] if "=" in word and not word.startswith("-")]
    overrides = OverridesParser.create().parse_overrides(words)
    if {each.key_or_group for each in overrides if each.is_sweep_override()} - {"result"}:
        raise ConfigError(
            f"result is '{path}' for all jobs of the multirun: give each its own path, as in "
            "result='out/${hydra:job.num}.json', or leave it out."
        )


if __name__ == "__main__":
    main()
