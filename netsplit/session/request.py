"""A composed config, read once before any work; later code takes records, not the config.

cfg ──Request──► settings and parts ──experiment_of──► Experiment
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from netsplit.cluster.catalogue import rates_by_kind
from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import check_offload
from netsplit.config import build, require_node, settings_in, validated
from netsplit.data.keys import ReadingKeys
from netsplit.errors import ConfigError
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.settings import check_backend
from netsplit.signature import TARGET, locate, signature_of
from netsplit.training.checkpoints import origin_checkpoint

if TYPE_CHECKING:
    from torch import nn

    from netsplit.cluster.local import ClusterSpec
    from netsplit.optim.learning_rate import LearningRate
    from netsplit.optim.optimizers import OptimizerFactory
    from netsplit.partition.partitioner import Partitioner
    from netsplit.program.schedules import Schedule
    from netsplit.tracking import Tracker

__all__ = ["GROUPS", "NAMED", "Request", "without_reading"]

NAMED = ("model", "dataset", "cluster", "schedule", "optimizer", "scheduler")  # groups with one chosen option
GROUPS = (*NAMED, "partitioner", "tracking", "loss", "metrics")
CLASSES = ("num_classes", "vocabulary")  # names that models give to their number of classes


class Request:
    """One comparison as a config asks for it; its light parts are built at once."""

    def __init__(self, cfg: DictConfig) -> None:
        self.config = OmegaConf.to_container(cfg, resolve=True)  # for the record
        self.settings = settings_in(cfg, GROUPS)
        for key in (*NAMED, "tracking", "loss", *(["metrics"] if "metrics" in cfg else [])):
            require_node(cfg, key, options=key != "loss")
        if self.settings.resume not in ("never", "auto"):
            origin_checkpoint(self.settings.resume)
        self.tracker: Tracker = build(cfg.tracking)
        self.cluster: ClusterSpec | ClusterDescription = build(cfg.cluster)
        self.schedule: Schedule | AutoSchedule = build(cfg.schedule)
        self.partitioners: dict[str, Partitioner] = {
            str(name): build(node) for name, node in cfg.partitioner.items()
        }
        if self.schedule.decides_everything:
            self._check_open()
        self._check_cluster()
        cfg, reading = without_reading(cfg)
        validated(cfg, provided={"optimizer": ["params"]})
        self.optimizer: OptimizerFactory = build(cfg.optimizer)
        self.learning_rate: LearningRate | None = build(cfg.scheduler)
        reading.setdefault("seed", self.settings.seed)
        self.reading: ReadingKeys = build(OmegaConf.create({"dataset": reading}).dataset)
        self.dataset: Callable[[], Any] = partial(build, cfg.dataset)
        self.dataset_name = str(cfg.dataset.get(TARGET))
        self.model: Callable[[], nn.Module] = partial(build, cfg.model)
        self.loss: Callable[[], Any] = partial(build, cfg.loss)
        self.metric: Any = build(cfg.metrics) if "metrics" in cfg else "auto"
        self.classes = {key: cfg.model[key] for key in CLASSES if cfg.model.get(key) is not None}
        self.settings.checkpoint.make_folder()

    def _check_cluster(self) -> None:
        if isinstance(self.cluster, ClusterDescription):
            self.cluster.require_models()
            if self.settings.adapt:
                raise ConfigError(
                    "adapt is true, but a described cluster trains nothing: leave it out, or name a "
                    "cluster of devices on this machine."
                )
            return
        devices = self.cluster.devices
        check_offload(self.settings.offload, devices, self.settings.compile_backend)
        if self.settings.profile == "predicted":
            rates_by_kind(devices, self.settings.autocast)
        names = [each.torch_device for each in devices]
        check_backend(self.settings.compile_backend, names, self.settings.autocast)

    def _check_open(self) -> None:
        if len(self.partitioners) > 1:
            raise ConfigError(
                f"schedule=auto needs one method, but partitioner names {', '.join(self.partitioners)}: "
                "give one, such as partitioner=[auto], or name a schedule, such as schedule=1f1b."
            )
        if self.settings.memory == "static":
            raise ConfigError(
                "memory is static, but schedule=auto needs memory=lifetimes: leave memory out, or name a "
                "schedule."
            )


def without_reading(cfg: DictConfig) -> tuple[DictConfig, dict[str, Any]]:
    """The config without its dataset's reading keys, and these as a node for `ReadingKeys`."""
    reading: dict[str, Any] = {TARGET: f"{ReadingKeys.__module__}.{ReadingKeys.__qualname__}"}
    node = cfg.get("dataset")
    if not isinstance(node, DictConfig) or TARGET not in node:
        return cfg, reading
    name = str(node[TARGET])
    parameters = signature_of(locate(name, key := f"dataset.{TARGET}"), name, key)
    names = [each.name for each in fields(ReadingKeys) if each.name in node and each.name not in parameters]
    if not names or "**" in parameters:
        return cfg, reading
    answer = cfg.copy()
    with open_dict(answer.dataset):
        reading |= {each: answer.dataset.pop(each) for each in names}
    return answer, reading
