"""Predict an iteration of a profiled graph file without devices: `netsplit simulate --help`."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from ._entry import entry
from ._graph_file import (
    SimulateSettings,
    described,
    graph_settings,
    need_graph,
    one_partitioner,
    one_schedule,
)

__all__ = ["job", "main"]


def job(cfg: DictConfig) -> float:
    """Everything from the composed config to the tables, the trace and the picture.

    Returns seconds of an iteration, which a sweep may minimise.
    """
    need_graph(cfg)
    settings: SimulateSettings = graph_settings(cfg, SimulateSettings)
    partitioner = one_partitioner(cfg, settings.time_limit) if settings.placement is None else None
    schedule = one_schedule(cfg)
    cluster = described(cfg, "netsplit simulate")
    folder = Path(HydraConfig.get().runtime.output_dir)

    from . import _simulated

    return _simulated.run(settings, partitioner, schedule, cluster, folder)


main = entry(config_name="simulate")(job)


if __name__ == "__main__":
    main()
