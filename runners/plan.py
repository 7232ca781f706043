"""Decide the whole plan of a model without starting a device: `python -m runners.plan --help`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build, require_node

from ._entry import command_line, entry, option, settings_of
from ._graph_file import one_partitioner

__all__ = ["job", "main"]

GROUPS = ("model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "loss")
USUAL = "cpu2"  # cluster, where none is given and no graph file


def job(cfg: DictConfig) -> float:
    """Everything from the composed config to the tables and `plan.json`.

    Returns predicted seconds of an iteration, which a sweep may minimise.
    """
    from .cli import planned

    kind = planned.PlanSettings
    owner, names = f"{kind.__module__}.{kind.__qualname__}", [field.name for field in fields(kind)]
    settings: planned.PlanSettings = settings_of(cfg, owner, names, GROUPS)
    schedule, method = build(cfg.schedule), one_partitioner(cfg, None)
    folder = Path(HydraConfig.get().runtime.output_dir)
    if settings.graph is not None:
        cluster = None if cfg.get("cluster") is None else build(cfg.cluster)
        step = planned.profiled(settings.graph, settings.microbatches, cluster, settings.offload)
        return planned.run(step, schedule, method, settings.seed, folder)
    for key in ("model", "dataset", "optimizer", "loss"):
        require_node(cfg, key, options=key != "loss")
    usual = OmegaConf.create({"cluster": option("cluster", USUAL)}).cluster
    devices = build(usual if cfg.get("cluster") is None else cfg.cluster)
    foreseen = planned.foreseen(settings, cfg, devices)
    here = isinstance(devices, planned.ClusterSpec)
    train = command_line("train", HydraConfig.get().overrides.task) if here else ""
    return planned.run(foreseen, schedule, method, settings.seed, folder, train)


@entry(config_name="plan")
def main(cfg: DictConfig) -> float:
    return job(cfg)


if __name__ == "__main__":
    main()
