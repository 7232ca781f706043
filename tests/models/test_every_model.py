"""Every model of `conf/model/`: its size, its shapes, and that its training step is captured whole."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from netsplit.config import build
from netsplit.graph import capture, initial_values, rebuild
from tests.cover import few
from tests.models.subjects import CONF, SUBJECTS, config_of, count, on_meta

SMALL = [name for name in SUBJECTS if name.endswith("_small")]
LARGE = [name for name in SUBJECTS if not name.endswith("_small")]
DRAWN = few(list(SUBJECTS), 12)
SLOW = {  # several hundred operators, or dear ones
    "amoebanet_d_small",
    "googlenet_small",
    "inception_v3_small",
    "u_transformer_small",
    "wide_resnet152_small",
}


def test_the_table_has_every_config() -> None:
    configs = {path.stem for path in (CONF / "model").glob("*.yaml")}
    assert set(SUBJECTS) == configs - {"onnx"}  # which is of any size


@pytest.mark.parametrize("name", DRAWN)
def test_parameters_are_as_many_as_said(name: str) -> None:
    assert count(on_meta(name)) == SUBJECTS[name].parameters


@pytest.mark.parametrize("name", SUBJECTS)
def test_parameters_are_as_many_as_the_page_and_the_config_say(name: str) -> None:
    written = f"{SUBJECTS[name].parameters:,}"
    page = (CONF.parent / "docs" / "models.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` "))
    assert re.search(rf"(?<![\d,]){written}(?![\d,])", row)
    assert written in (CONF / "model" / f"{name}.yaml").read_text().splitlines()[0]


@pytest.mark.parametrize("name", DRAWN)
def test_scores_have_classes_second_and_the_shape_of_the_targets(name: str) -> None:
    inputs, targets = SUBJECTS[name].batch(name, 2, "meta")
    config = config_of(name)
    scores = on_meta(name).eval()(*inputs)
    classes = config.get("num_classes") or config.vocabulary
    assert scores.shape == (2, classes, *targets.shape[1:])


@pytest.mark.parametrize(
    "name",
    [
        *few([name for name in SMALL if name not in SLOW], 5),
        *(pytest.param(n, marks=pytest.mark.slow) for n in sorted(SLOW)),
    ],
)
def test_the_captured_step_of_a_small_model_is_the_models_bit_for_bit(name: str) -> None:
    torch.manual_seed(0)
    model = build(config_of(name))
    inputs, targets = SUBJECTS[name].batch(name, 2)
    loss = nn.CrossEntropyLoss()
    graph = capture(model, loss, (inputs, (targets,)))
    rebuilt = rebuild(graph, initial_values(model, graph))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(1)
    outputs = rebuilt(*inputs, targets)
    outputs.backward()
    gradients = {key: p.grad for key, p in model.named_parameters()}
    model.load_state_dict(state)
    model.zero_grad()
    torch.manual_seed(1)
    wanted = loss(model.train()(*inputs), targets)
    wanted.backward()
    assert torch.isfinite(wanted)
    assert torch.equal(outputs, wanted)
    for key, p in model.named_parameters():
        assert p.grad is not None, key
        assert torch.isfinite(p.grad).all(), key
        torch.testing.assert_close(gradients[key], p.grad, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "gpt")) for name in LARGE]
)
def test_the_step_of_a_large_model_is_captured_without_memory(name: str) -> None:
    model = on_meta(name)
    inputs, targets = SUBJECTS[name].batch(name, 2, "meta")
    if config_of(name).get("num_classes") == 1:
        targets = torch.zeros_like(targets)
    graph = capture(model, nn.CrossEntropyLoss(), (inputs, (targets,)))
    trained = {key for key, init in graph.initializers.items() if init.is_parameter}
    assert trained == {key for key, _ in model.named_parameters()}
    assert graph.batch_size == 2
