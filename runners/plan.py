"""Decide the whole plan of a model without starting a device: `python -m runners.plan --help`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from netsplit.cluster.local import ClusterSpec
from netsplit.config import build, require_node
from netsplit.errors import ConfigError

from ._entry import command_line, entry, option, settings_of
from ._graph_file import PlanSettings, need_graph, one_partitioner

__all__ = ["job", "main"]

GROUPS = ("model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "loss")
USUAL = "cpu2"  # cluster, where none is given and no graph file


def job(cfg: DictConfig) -> float:
    """Everything from the composed config to the tables and `plan.json`.

    Returns predicted seconds of an iteration, which a sweep may minimise.
    """
    names = [field.name for field in fields(PlanSettings)]
    settings: PlanSettings = settings_of(cfg, f"{__package__}._graph_file.PlanSettings", names, GROUPS)
    if settings.graph is not None:
        need_graph(cfg)
    elif cfg.get("model") is None:
        raise ConfigError(
            "plan needs a model: give model=<option>, as in model=resnet50 dataset=synthetic "
            "cluster=v100x8, your own, as in `netsplit plan my_module:build --cluster v100x8`, or "
            "graph=<file>, a measured profile. The default cluster is cpu2."
        )
    cluster = None if cfg.get("cluster") is None else build(cfg.cluster)
    schedule, method = build(cfg.schedule), one_partitioner(cfg, None)
    folder = Path(HydraConfig.get().runtime.output_dir)
    for key in () if settings.graph else ("model", "dataset", "optimizer", "loss"):
        require_node(cfg, key, options=key != "loss")

    from .cli import planned

    if settings.graph is not None:
        decide = planned.by_file(settings.graph, settings.microbatches, cluster, settings.offload)
        return planned.run(decide, schedule, method, settings.seed, folder)
    if cluster is None:
        cluster = build(OmegaConf.create({"cluster": option("cluster", USUAL)}).cluster)
    is_local = isinstance(cluster, ClusterSpec)
    train = command_line("train", HydraConfig.get().overrides.task) if is_local else ""
    decide = planned.by_config(settings, cfg, cluster)
    return planned.run(decide, schedule, method, settings.seed, folder, train)


main = entry(config_name="plan")(job)


if __name__ == "__main__":
    main()
