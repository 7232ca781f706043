"""Optimisers of a model: which parameters they are given, what their groups and their code may go by."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn, optim

from netsplit.errors import ConfigError
from netsplit.optim.optimizers import ParameterGroups, for_model, make_optimizer
from netsplit.profile.measure.optimizer import check_optimizer


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.LayerNorm(8)
        self.last = nn.Linear(8, 3)


def test_frozen_parameters_are_not_given_and_tied_ones_once() -> None:
    model = Net()
    model.first.bias.requires_grad_(False)
    model.other = model.last
    names = list(for_model(optim.SGD, model, nn.Linear(2, 2)).parameters)
    assert names == [
        "first.weight", "norm.weight", "norm.bias", "last.weight", "last.bias", "loss.weight", "loss.bias",
    ]  # fmt: skip


def by_attribute(parameters: list[Any]) -> optim.Optimizer:
    plain = [p for p in parameters if not getattr(p, "no_decay", False)]
    others = [p for p in parameters if getattr(p, "no_decay", False)]
    return optim.AdamW([{"params": plain}, {"params": others, "weight_decay": 0.0}])


def test_a_factory_may_go_by_attributes_of_parameters() -> None:
    model = Net()
    for p in (model.norm.weight, model.last.bias):
        p.no_decay = True  # type: ignore[attr-defined]
    factory = for_model(by_attribute, model)
    check_optimizer(factory)
    own = {"last.bias": nn.Parameter(torch.ones(3))}
    assert make_optimizer(factory, own).groups[1] == ("norm.weight", "last.bias")
    assert pickle.loads(pickle.dumps(factory)).attributes == factory.attributes


def test_an_attribute_that_cannot_be_sent_is_refused() -> None:
    model = Net()
    model.norm.weight.owner = model  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"'norm\.weight' has the attribute 'owner'"):
        for_model(by_attribute, model)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.1, "momentun": 0.9}, "optimizer.momentun is not a parameter of SGD: did you mean momentum"),
        ({"groups": [{"match": ["*"]}]}, r"optimizer.groups\[0\] is .*: give 'match'"),
        ({"groups": [{"match": ["*"], "rate": 1}]}, r"optimizer.groups\[0\].rate is not a parameter of SGD"),
    ],
)
def test_groups_say_what_is_wrong_with_them(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ParameterGroups("torch.optim.SGD", **settings)
