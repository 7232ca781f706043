"""What the command line gives for all reaches cases that have their own; what would be lost is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from netsplit.errors import ConfigError
from runners._case_overrides import cases_of, published_of

CONF = Path(__file__).resolve().parents[2] / "conf"
MODELS = """# @package _global_
defaults:
  - /model@cases.amoeba.model: amoebanet_d
  - /dataset@cases.amoeba.dataset: synthetic
  - /model@cases.wide.model: wide_resnet152_all
  - /dataset@cases.wide.dataset: synthetic
  - /model@cases.unet.model: unet_classic
  - /dataset@cases.unet.dataset: synthetic
  - override /cluster: titan_rtx3
cases:
  amoeba: {batch_size: 32, dataset: {num_classes: 1000}}
  wide: {batch_size: 32, dataset: {num_classes: 1000}}
  unet: {batch_size: 16, dataset: {kind: mask, num_classes: 21}, model: {num_classes: 21}}
"""
DEVICES = """# @package _global_
defaults:
  - override /cluster: uniform
cases:
  one: {cluster: {devices: 1}}
  two: {cluster: {devices: 2}}
"""
NAMES = ("amoeba", "wide", "unet")
Cases = Callable[..., dict[str, DictConfig]]


@pytest.fixture
def cases(tmp_path: Path) -> Cases:
    """Compose an experiment of the above with overrides; answers its cases."""
    (tmp_path / "experiment").mkdir()
    for name, text in (("models", MODELS), ("devices", DEVICES)):
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)

    def composed(experiment: str, *overrides: str) -> dict[str, DictConfig]:
        given = [f"experiment={experiment}", f"hydra.searchpath=[file://{tmp_path}]", *overrides]
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return cases_of(compose("config", given), given)

    return composed


def test_a_value_for_all_is_for_all_and_one_for_a_case_for_that(cases: Cases) -> None:
    configs = cases("models", "cases.unet.batch_size=4", "batch_size=8")
    assert {name: each.batch_size for name, each in configs.items()} == dict.fromkeys(NAMES, 8) | {"unet": 4}


def test_an_option_for_all_takes_the_place_of_each_case_s_own(cases: Cases) -> None:
    configs = cases("models", "dataset.limit=9", "dataset=digits", "cases.unet.batch_size=4")
    for each in configs.values():
        assert each.dataset._target_ == "netsplit.data.digits"
        assert each.dataset.limit == 9
    assert configs["unet"].batch_size == 4


@pytest.mark.parametrize(
    ("experiment", "override", "words"),
    [
        ("models", "model=vgg19", ["no difference between amoeba and wide", "model@cases.<name>.model="]),
        ("devices", "cluster.devices=3", ["no difference", "cases.<name>.cluster.devices=<value>"]),
        ("models", "model.num_layers=4", ["case 'wide' has no model.num_layers"]),
    ],
)
def test_what_does_not_fit_the_cases_is_refused_with_what_does(
    cases: Cases, experiment: str, override: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        cases(experiment, override)
    assert str(refused.value).startswith(f"{override} is for all cases")
    assert all(word in str(refused.value) for word in words), str(refused.value)


PUBLISHED = {"amoeba": {"auto": 1.0, "m_topo": 2.0}, "wide": {"auto": 3.0}, "unet": {"auto": 4.0}}


@pytest.mark.parametrize(
    ("overrides", "left_out"),
    [
        ([], ""),
        (["batch_size=32"], "amoeba (batch_size=32), wide (batch_size=32), unet (batch_size=32)"),
        (["dataset@cases.unet.dataset=text"], "unet (dataset@cases.unet.dataset=text)"),
        (["accumulate=2"], "amoeba (accumulate=2), "),
        (["partitioner=[single]", "schedule.microbatches=2", "cluster=titan_rtx5", "seed=1"], ""),
    ],
)
def test_published_figures_are_of_the_settings_that_the_command_line_leaves(
    caplog: pytest.LogCaptureFixture, overrides: list[str], left_out: str
) -> None:
    figures, said = published(PUBLISHED, caplog, overrides)
    assert [name for name in PUBLISHED if f"{name} (" in said] == [
        name for name in PUBLISHED if name not in figures
    ]
    assert left_out in said
    assert bool(said) == bool(left_out)


def published(
    figures: dict[str, dict[str, float]], caplog: pytest.LogCaptureFixture, overrides: list[str]
) -> tuple[dict[str, dict[str, float]], str]:
    """What is left of `figures`, and the line that says so."""
    cfg = OmegaConf.create({"cases": {name: {} for name in figures}, "published": figures})
    if "published.amoeba.auto=9" in overrides:
        cfg.published.amoeba.auto = 9
    with caplog.at_level("INFO"):
        by_case = published_of(cfg, overrides)
    assert len(caplog.messages) < 2
    return by_case, "".join(caplog.messages)
