"""Metrics of an epoch: counted over batches of any sizes, chosen to suit the task, else refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import netsplit
from netsplit.data import IGNORED
from netsplit.errors import ConfigError
from netsplit.training.metrics import (
    AUTO,
    NAMES,
    as_metric,
    evaluated,
    name_of_metric,
    named,
    update_metric,
)

CONF = Path(netsplit.__file__).parent / "conf"
CLASSES = 7


def _whole(metric: str, scores: Tensor, targets: Tensor) -> float:
    """The definition, of all samples at once."""
    counted = targets != IGNORED
    flat = scores.movedim(1, -1)[counted]
    wanted = targets[counted]
    if metric == "perplexity":
        return math.exp(cross_entropy(flat, wanted).item())
    if metric == "top5":
        return sum(
            int(y) in row.argsort(descending=True)[:5] for row, y in zip(flat, wanted, strict=True)
        ) / len(wanted)
    answers = flat.argmax(1)
    if metric == "accuracy":
        return float((answers == wanted).double().mean())
    each = []
    for c in range(CLASSES):
        either = ((answers == c) | (wanted == c)).sum().item()
        if either:
            each.append(((answers == c) & (wanted == c)).sum().item() / either)
    return sum(each) / len(each)


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    rest=st.sampled_from([(), (3,), (2, 2)]),
    seed=st.integers(0, 999),
)
@pytest.mark.parametrize("name", ["accuracy", "top5", "mean_iou", "perplexity"])
def test_batches_of_unequal_size_give_what_all_samples_give(
    name: str, sizes: list[int], rest: tuple[int, ...], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    scores = torch.randn(n, CLASSES, *rest, generator=generator, dtype=torch.float64)
    targets = torch.randint(-1, CLASSES, (n, *rest), generator=generator)
    targets[targets == -1] = IGNORED
    targets[0] = 3
    metric = as_metric(name)
    assert metric is not None
    for _ in range(2):  # a reset forgets all
        metric.reset()
        for x, y in zip(scores.split(sizes), targets.split(sizes), strict=True):
            metric.update(x, y)
        assert metric.compute() == pytest.approx(_whole(name, scores, targets))


@pytest.mark.parametrize(
    ("name", "wrong"), [("accuracy", -1), ("top5", 3), ("mean_iou", 255), ("perplexity", 3)]
)
def test_a_target_that_is_no_class_of_the_model_s_is_refused_and_not_counted(name: str, wrong: int) -> None:
    metric = as_metric(name)
    assert metric is not None
    sentence = rf"{name} needs targets from 0 to 2, .* but one is {wrong}: .* -100 are ignored"
    with pytest.raises(ConfigError, match=f"^metric {sentence}"):
        update_metric(metric, torch.zeros(4, 3), torch.tensor([0, 2, wrong, 1]))
    metric.reset()
    metric.update(torch.zeros(4, 3), torch.tensor([0, IGNORED, 2, 1]))


def test_the_names_are_those_of_the_commands_options() -> None:
    assert sorted([AUTO, "none", *NAMES]) == sorted(path.stem for path in (CONF / "metrics").glob("*.yaml"))
    for name in NAMES:
        metric = as_metric(name)
        assert metric is not None
        assert name_of_metric(metric) == name
    assert (named("none"), named(AUTO)) == (None, AUTO)


class Largest:
    """As torchmetrics' objects are, of which it has no more."""

    def reset(self) -> None:
        self.value = torch.zeros(())

    def update(self, preds: Tensor, target: Tensor) -> None:
        self.value = torch.maximum(self.value, (preds - target).abs().max())

    def compute(self) -> Tensor:
        return self.value


def signs(outputs: Tensor, targets: Tensor) -> tuple[float, int]:
    return float((outputs.sign() == targets.sign()).sum()), len(targets)


def test_objects_like_those_of_torchmetrics_and_functions_are_metrics() -> None:
    batches = [
        (torch.tensor([1.0, -2.0]), torch.tensor([2.0, 3.0])),
        (torch.tensor([1.0]), torch.tensor([1.0])),
    ]
    for given_, name, wanted in ((Largest(), "Largest", 5.0), (signs, "signs", 2 / 3)):
        metric = as_metric(given_)
        assert metric is not None
        metric.reset()
        for outputs, targets in batches:
            metric.update(outputs, targets)
        assert name_of_metric(metric) == name
        assert float(metric.compute()) == pytest.approx(wanted)


def own(x: Tensor) -> Tensor:
    return x


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    columns=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_regression_is_judged_by_its_squared_error_however_it_is_batched(
    sizes: list[int], columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, sum(sizes), columns, generator=generator, dtype=torch.float64)
    pairs = list(zip(x.split(sizes), y.split(sizes), strict=True))
    wanted = nn.MSELoss()(x, y).item()
    for metric in (AUTO, "mse"):
        assert evaluated(own, pairs, metric, nn.CrossEntropyLoss()) == pytest.approx(wanted)
