"""Decide the whole plan of a model without starting a device: `python -m runners.plan --help`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build, require_node
from netsplit.errors import ConfigError

from ._entry import entry, option, settings_of
from ._graph_file import one_partitioner

__all__ = ["job", "main"]

GROUPS = ("model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "loss")
USUAL = "cpu2"  # cluster, where none is given and no graph file


def job(cfg: DictConfig) -> float:
    """Everything from the composed config to the tables and `plan.json`.

    Returns predicted seconds of an iteration, which a sweep may minimise.
    """
    if cfg.get("model") is None and cfg.get("graph") is None:
        raise ConfigError(
            "plan needs a model, and takes a cluster (cpu2 where none is given): give model=<option>, as in "
            "model=resnet50 dataset=synthetic cluster=v100x8, or one of yours, as in `netsplit plan "
            "my_module:build --cluster v100x8`, or graph=<file>, a measured profile."
        )

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
    foreseen = planned.foreseen(settings, cfg, build(usual if cfg.get("cluster") is None else cfg.cluster))
    return planned.run(foreseen, schedule, method, settings.seed, folder)


@entry(config_name="plan")
def main(cfg: DictConfig) -> float:
    return job(cfg)


if __name__ == "__main__":
    main()
