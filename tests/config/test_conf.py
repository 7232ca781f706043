"""Every option file under `conf/` fits the signature of what it builds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build, check
from netsplit.data import Data
from netsplit.errors import ConfigError
from runners._cases import cases_of
from runners.study import question

CONF = Path(__file__).resolve().parents[2] / "conf"
GROUPS = ("model", "dataset", "cluster", "schedule", "optimizer", "scheduler", "tracking")
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
    assert check(config).epochs == 3


NEEDING_A_FOLDER = ("cifar10", "imagefolder", "imagenet", "voc2012")


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_fits_its_target(option: str) -> None:
    group, name = option.split("=")
    if "\nstudy:" in (CONF / group / f"{name}.yaml").read_text():
        question(composed(option, config="study").study, Path())
        return
    override = f"{group}=[{name}]" if group == "partitioner" else option
    more = ["dataset.root=/nowhere"] if name in NEEDING_A_FOLDER else []
    more = ["model.path=/nowhere.onnx"] if name == "onnx" else more
    config = composed(override, *more)
    for each in (config, *cases_of(config).values()):
        check(each)


def test_the_quick_experiment_is_short() -> None:
    config = composed("experiment=quick")
    assert config.epochs == 1
    data = build(config.dataset)
    assert isinstance(data, Data)
    assert len(data.train) == config.dataset.limit


def test_the_image_folder_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"dataset\.root must be given"):
        check(composed("dataset=imagefolder"))


def test_an_optimizer_is_built_without_its_parameters() -> None:
    assert build(composed("optimizer=momentum").optimizer).keywords["momentum"] == 0.9


@pytest.mark.parametrize("path", sorted(CONF.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_says_what_it_is_in_its_first_words(path: Path) -> None:
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("value", [2, 0, "maybe"])
def test_a_switch_takes_true_and_false_only(value: object) -> None:
    config = OmegaConf.create({"epochs": 1, "batch_size": 1, "seed": 0, "drop_last": value})
    with pytest.raises(ConfigError, match="drop_last is"):
        check(config)
