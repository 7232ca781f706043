"""`netsplit.config`: what is built, and the sentence for what cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build, validated
from netsplit.errors import ConfigError
from tests.config.targets import Box, Item

TARGETS = "tests.config.targets"


def node(**parameters: Any) -> DictConfig:
    """A Box's node at the key `box` of a config."""
    config = OmegaConf.create({"seed": 3, "box": {"_target_": f"{TARGETS}.Box", "width": 1, **parameters}})
    return config.box


def test_values_have_the_types_of_the_signature() -> None:
    box = build(node(ratio=2, label="x", mode="slow", sizes=[1, 2], rate=1))
    assert box == Box(width=1, ratio=2.0, label="x", mode="slow", sizes=(1, 2), rate=1.0)
    assert isinstance(box.ratio, float)
    assert isinstance(box.sizes, tuple)


def test_a_list_of_dataclasses_is_built_item_by_item() -> None:
    box = build(node(items=[{"name": "a", "size": "3MiB"}, {"name": "b"}]))
    assert box.items == [Item("a", "3MiB"), Item("b", 1)]


def test_a_nested_target_is_built_first() -> None:
    assert build(node(inner={"_target_": f"{TARGETS}.Item", "name": "a"})).inner == Item("a")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"widht": 1}, ["box.widht is not a parameter", "did you mean width?", "ratio"]),
        ({"width": "x"}, ["box.width is 'x'", "give an integer"]),
        ({"width": "???"}, ["box.width must be given", "an integer"]),
        ({"mode": "medium"}, ["box.mode is 'medium'", "one of fast, slow"]),
        ({"items": [{"name": "a", "sise": 1}]}, ["box.items[0].sise", "did you mean size?"]),
        ({"ratio": "${nowhere}"}, ["box.ratio", "nowhere"]),
    ],
)
def test_a_bad_node_gives_one_sentence_with_the_full_key(
    parameters: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(node(**parameters))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (f"{TARGETS}.Bxo", ["there is no tests.config.targets.Bxo", "did you mean Box?"]),
        ("no_such_package.thing", ["box._target_", "there is no no_such_package"]),
        (f"{TARGETS}.NOT_CALLABLE", ["cannot be called"]),
    ],
)
def test_a_target_that_cannot_be_imported_is_named(target: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build(node(_target_=target))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_parameter_set_by_the_program_must_not_be_in_the_node() -> None:
    with pytest.raises(ConfigError, match=r"box\.width is set by the program"):
        build(node(), width=2)


def whole(**keys: Any) -> DictConfig:
    return OmegaConf.create({"epochs": 1, "batch_size": 8, "seed": 0, **keys})


def test_check_finds_a_mistake_at_any_depth() -> None:
    target = {"_target_": f"{TARGETS}.Item", "nam": "a"}
    for deep in ({"method": {"one": target}}, {"methods": [target]}):
        with pytest.raises(ConfigError, match=r"nam is not a parameter"):
            validated(whole(**deep))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"epochs": "many"}, "epochs is 'many': give an integer"),
        ({"epochs": 0}, "epochs is 0: give at least 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_check_refuses_bad_settings(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validated(whole(**keys))
