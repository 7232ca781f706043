"""What a composed config asks for, read once, before any work: what follows takes records, and no config.

cfg ──cases_of──► one config a case ──Request──► settings and parts ──experiment_of──► Experiment
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from netsplit.cluster.catalogue import rates_by_kind
from netsplit.cluster.described import ClusterDescription
from netsplit.config import build, validated
from netsplit.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from netsplit.cluster.local import ClusterSpec
    from netsplit.data.dataset import Data
    from netsplit.optim.learning_rate import LearningRate
    from netsplit.optim.optimizers import OptimizerFactory
    from netsplit.partition.partitioner import Partitioner
    from netsplit.program.schedules import Schedule
    from netsplit.tracking import Tracker

__all__ = ["GROUPS", "NAMED", "Request"]

NAMED = ("model", "dataset", "cluster", "schedule", "optimizer", "scheduler")  # of which one option is chosen
GROUPS = (*NAMED, "partitioner", "tracking", "loss", "metrics", "cases", "published")
CLASSES = ("num_classes", "vocabulary")  # what models call the number of classes that they tell apart


class Request:
    """One comparison: what takes no time is built, so that a mistake in it is said before any work.

    Args:
        cfg: all that the comparison is made of.
        whole: the config of which `cfg` is a case.
        published: method -> samples per second that others reached.

    Raises:
        ConfigError: the first key or value that cannot be used.
    """

    def __init__(
        self, cfg: DictConfig, whole: DictConfig | None = None, published: Mapping[str, float] | None = None
    ) -> None:
        self.settings = validated(cfg, provided={"optimizer": ["params"]}, groups=GROUPS)
        self.tracker: Tracker = build(cfg.tracking)
        self.cluster: ClusterSpec | ClusterDescription = build(cfg.cluster)
        self.partitioners: dict[str, Partitioner] = {
            str(name): build(node) for name, node in cfg.partitioner.items()
        }
        self.schedule: Schedule = build(cfg.schedule)
        self.optimizer: OptimizerFactory = build(cfg.optimizer)
        self.learning_rate: LearningRate | None = build(cfg.scheduler)
        self.data: Callable[[], Data] = partial(build, cfg.dataset)
        self.model: Callable[[], nn.Module] = partial(build, cfg.model)
        self.loss: Callable[[], Any] = partial(build, cfg.loss)
        self.metric: Any = build(cfg.metrics) if "metrics" in cfg else "auto"
        self.classes = {key: cfg.model[key] for key in CLASSES if cfg.model.get(key) is not None}
        self.own = [group for group in NAMED if whole is not None and cfg[group] != whole[group]]
        self.published = dict(published or {})
        self.config = OmegaConf.to_container(cfg, resolve=True)  # for the record
        if isinstance(self.cluster, ClusterDescription):
            self.cluster.require_models()
        elif self.settings.profile == "predicted":
            rates_by_kind(self.cluster.devices, self.settings.autocast)
        if self.settings.checkpoint.trained == "mlflow" and not self.tracker.enabled:
            raise ConfigError(
                "checkpoint.trained is mlflow, and tracking is off: give folder or none, or leave "
                "tracking=none out."
            )
        self.settings.checkpoint.make_folder()
