"""Every option file under `conf/` fits the signature of what it builds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build, validated
from netsplit.data import Data
from netsplit.optim.optimizers import for_model
from netsplit.session.request import without_reading
from tests.cover import few

CONF = Path(__file__).resolve().parents[2] / "conf"
GROUPS = ("model", "dataset", "cluster", "schedule", "optimizer", "scheduler", "metrics", "tracking")
OPTIONS = [
    f"{group}={path.stem}"
    for group in (*GROUPS, "experiment", "partitioner")
    for path in sorted((CONF / group).glob("*.yaml"))
]


def composed(*overrides: str, config: str = "config") -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(config, list(overrides))


def test_the_default_config_chooses_every_group() -> None:
    config = composed()
    assert set(GROUPS) < set(config)
    assert list(config.partitioner) == ["auto", "netsplit", "m_topo", "single"]
    assert validated(without_reading(config)[0]).epochs == 3


NEEDED = {
    "onnx": "model.path",
    **dict.fromkeys(("cifar10", "imagefolder", "imagenet", "voc2012"), "dataset.root"),
    "huggingface": "dataset.root dataset.inputs",
}


composed_once = cache(composed)


def chosen(group: str, name: str) -> DictConfig:
    """The config with one option: put into its place where Hydra, ten times slower, does no more."""
    file = OmegaConf.load(CONF / group / f"{name}.yaml")
    if "defaults" in file or group == "partitioner":  # these are put together, or put elsewhere
        return composed(f"{group}=[{name}]" if group == "partitioner" else f"{group}={name}")
    config = composed_once("partitioner=single").copy()
    config[group] = file
    return config


@pytest.mark.parametrize("option", few(OPTIONS, 15))
def test_every_option_fits_its_target(option: str) -> None:
    group, name = option.split("=")
    config = chosen(group, name)
    for key in NEEDED.get(name, "").split():
        OmegaConf.update(config, key, "/nowhere")
    validated(without_reading(config)[0])


@pytest.mark.parametrize("option", ["model=bert", "cluster=v100x8"])
def test_an_option_is_put_where_hydra_puts_it(option: str) -> None:
    assert composed("partitioner=single", option) == chosen(*option.split("="))


def test_the_quick_experiment_is_short() -> None:
    config = composed("experiment=quick")
    assert config.epochs == 1
    data = build(without_reading(config)[0].dataset)
    assert isinstance(data, Data)
    assert len(data.train) == config.dataset.limit


def test_groups_of_parameters_are_given_by_name_on_the_command_line() -> None:
    groups = '[{match: ["*.bias", "*norm*"], weight_decay: 0.0}]'
    factory = build(composed("optimizer=adamw", "optimizer.lr=0.5", f"optimizer.groups={groups}").optimizer)
    weight, bias = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    made = factory([("a.weight", weight), ("a.bias", bias)])
    assert [(group["lr"], group["weight_decay"]) for group in made.param_groups] == [(0.5, 0.01), (0.5, 0.0)]
    assert made.param_groups[1]["params"] == [bias]


def test_no_scheduler_is_none_and_the_others_are_made_of_an_optimizer() -> None:
    assert build(composed_once("partitioner=single").scheduler) is None
    momentum = chosen("optimizer", "momentum").optimizer
    for path in sorted((CONF / "scheduler").glob("*.yaml")):
        rate = build(chosen("scheduler", path.stem).scheduler)
        if rate is not None:
            optimizer = for_model(build(momentum), torch.nn.Linear(2, 2))
            rate.over(epochs=3, steps_per_epoch=20).check(optimizer)
