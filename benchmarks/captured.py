"""Graphs captured from the models of `conf/model`, with costs measured on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from benchmarks.setting import CONF, MIXED, Setting, described
from netsplit.config import build
from netsplit.data.reading.loader import batches
from netsplit.partition import METHODS
from netsplit.planning.workload import Workload
from netsplit.program import GPipe
from netsplit.program.schedules import Schedule
from netsplit.session.request import without_reading
from netsplit.session.session import Session
from netsplit.training.options import Training

__all__ = ["CAPTURED", "captured_settings", "composed"]

CLUSTERS = ("cpu2", "cpu4")
CAPTURED = (
    "amoebanet_d_small",
    "bert_small dataset=text dataset.masked=true",
    "deeplab_v3_small dataset=digits_segmentation",
    "googlenet_small",
    "gpt_small dataset=text",
    "inception_v3_small dataset.image_size=75",
    "resnet152_small",
    "unet_small dataset=digits_segmentation",
    "vgg19_small",
    "wide_resnet152_small",
)
"""Models of `conf/model`, with what else the configuration then needs."""


def captured_settings(model: str) -> Iterator[Setting]:
    """Per cluster of this machine one step, and the default schedule, with memory as the lifetimes have it.

    On described clusters, whose capacities are fractions of what (5-18) counts, one step by that count.
    """
    for cluster in CLUSTERS:
        work, schedule = _captured(model, cluster)
        each = f"{model} captured on {cluster}"
        for objective in ("latency", "simulated"):
            named = objective if objective == "latency" else f"{schedule.name} x {schedule.microbatches}"
            keys = {"objective": objective, "schedule": schedule, "memory": "lifetimes"}
            yield _setting(work, f"{each}, {named}", None, keys)
        if cluster == CLUSTERS[0]:
            for name in MIXED:
                yield _setting(work, f"{each}, latency, {name}", described(name), {"objective": "latency"})


def _setting(work: Workload, title: str, cluster: Any, keys: dict[str, Any]) -> Setting:
    return Setting(
        suite=f"captured {keys['objective']}",
        title=title,
        workload=work,
        cluster=cluster,
        problem_keys=keys,
        methods=tuple(METHODS),
        unit="ms",
        unit_s=1e-3,
    )


def composed(model: str, cluster: str) -> DictConfig:
    """The default comparison's config with a model of `CAPTURED`."""
    overrides = [f"model={model.split()[0]}", f"cluster={cluster}", *model.split()[1:]]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=overrides)


def _captured(model: str, cluster: str) -> tuple[Workload, Schedule]:
    """Captured and profiled on the first worker; the links are probed between all."""
    cfg = composed(model, cluster)
    data = build(without_reading(cfg)[0].dataset)
    batch = next(batches(data.train, cfg.batch_size, seed=cfg.seed))
    schedule = build(cfg.schedule)
    assert isinstance(schedule, GPipe)
    with tempfile.TemporaryDirectory() as folder, Session(build(cfg.cluster), Path(folder)) as session:
        training = Training(build(cfg.optimizer))
        step = session.step(build(cfg.model), build(cfg.loss), batch, training)
        problem = session.problem(step, schedule)
        return step.workload(problem), problem.the_simulator.schedule
