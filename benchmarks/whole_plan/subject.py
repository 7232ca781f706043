"""Models of `conf/model` in full size on clusters, at any number of micro-batches; seconds are predicted."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from hydra import compose, initialize_config_dir

from benchmarks.setting import CONF, described
from netsplit.cluster.catalogue import accelerator
from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.config import build
from netsplit.graph.recording.step import capture
from netsplit.partition.base import Problem
from netsplit.planning.workload import Workload
from netsplit.profile.predict import predicted_costs
from netsplit.program.schedules import SCHEDULES
from netsplit.session.request import without_reading

__all__ = ["CLUSTERS", "MODELS", "Subject"]

IMAGES = "dataset=synthetic dataset.num_classes=1000"
MODELS = {
    "amoebanet_d": f"model=amoebanet_d {IMAGES} batch_size=128",
    "bert": "model=bert dataset=synthetic dataset.kind=tokens dataset.shape=[128] "
    "dataset.num_classes=30522 batch_size=128",
    "deeplab_v3": "model=deeplab_v3 dataset=synthetic dataset.kind=mask dataset.num_classes=21 batch_size=32",
    "googlenet": f"model=googlenet {IMAGES} batch_size=256",
    "gpt": "model=gpt dataset=synthetic dataset.kind=tokens dataset.shape=[512] "
    "dataset.num_classes=50257 batch_size=64",
    "inception_v3": f"model=inception_v3 {IMAGES} dataset.shape=[3,299,299] batch_size=128",
    "resnet152": f"model=resnet152 {IMAGES} batch_size=128",
    "u_transformer": "model=u_transformer dataset=synthetic dataset.kind=mask dataset.shape=[3,256,256] "
    "dataset.num_classes=2 batch_size=32",
    "vgg19": f"model=vgg19 {IMAGES} batch_size=128",
    "wide_resnet152": f"model=wide_resnet152 {IMAGES} batch_size=128",
}
"""Models of `conf/model` in full size, as words of a command line."""

CLUSTERS = ("v100x8", "titan_rtx5", "h200x8", "mixed3", "old_new", "v100x16")
BASE = "TITAN RTX"  # what the speeds of mixed3 are relative to
ALPHA = 3  # SGD with momentum


class Subject:
    """A model of `conf/model` captured on the meta device at any number of micro-batches, on a cluster."""

    def __init__(self, model: str, cluster: str) -> None:
        self.name, self.cluster = model, _cluster(cluster)
        self.words = MODELS[model]
        self.batch_size = int(_config(self.words).batch_size)
        self.problems: dict[int, Problem] = {}

    @property
    def nodes(self) -> int:
        return max((len(problem.graph) for problem in self.problems.values()), default=0)

    def problem(self, m: int) -> Problem:
        """The problem of planning with so many micro-batches, by lifetimes."""
        if m not in self.problems:
            graph = _graph(self.words, self.batch_size // m)
            known = accelerator(BASE, "BASE")
            work = Workload(self.name, graph, predicted_costs(graph, {known.name: known}, ALPHA))
            self.problems[m] = work.problem(
                self.cluster,
                "simulated",
                schedule=SCHEDULES["gpipe"]().with_microbatches(m),
                memory="lifetimes",
            )
        return self.problems[m]


def _cluster(name: str) -> ClusterDescription:
    if name == "v100x16":  # of conf/experiment/scaling.yaml
        return uniform_cluster(16, "22GB", None, 1e-5, name=name, model="V100-SXM2-32GB")
    return described(name)


@cache
def _config(words: str) -> Any:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=words.split())


@cache
def _graph(words: str, samples: int) -> Any:
    cfg = _config(words)
    with torch.device("meta"):
        model = build(cfg.model)
    return capture(model.train(), build(cfg.loss), build(without_reading(cfg)[0].dataset).shapes(samples))
