"""How model and loss are called, and which loss and metrics are read from what they return."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, ConfigError
from netsplit.graph import Graph, capture, capture_inference, initial_values, rebuild
from netsplit.graph.batches.batch import Arguments, Batch, call_loss, call_model
from tests.cover import covering

Pair = namedtuple("Pair", ["x", "mask"])
mse = nn.functional.mse_loss


@dataclass
class Given:
    x: Tensor
    mask: Tensor
    scale: float = 1.0


class Masked(nn.Module):
    """Takes its tensors one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
        y = self.layer(x) * scale
        return y if mask is None else y * mask


class OfOne(nn.Module):
    """Takes one structure."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return self.inner(**batch)
        return self.inner(batch.x, batch.mask, scale=getattr(batch, "scale", 1.0))


class Returns(nn.Module):
    """Calls a function with its layer's result and its inputs."""

    def __init__(self, make: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.bias = nn.Parameter(torch.tensor(2.0))
        self.make = make

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return self.make(self, self.layer(x), x, labels)


def example(n: int = 4) -> tuple[Tensor, Tensor]:
    torch.manual_seed(n)
    return torch.randn(n, 3), torch.randint(0, 2, (n, 3)).float()


def recomputed(graph: Graph, module: nn.Module, batch: Batch, loss: Any = None) -> tuple[Tensor, ...]:
    """The graph's outputs, by its own operators."""
    values = initial_values(module, graph, loss)
    computed = rebuild(graph, values, outputs=graph.output_variables)(*batch.tensors)
    assert isinstance(computed, tuple)
    return computed


X, MASK = example()
INPUTS: dict[str, tuple[type[nn.Module], Any, Callable[[nn.Module], Tensor]]] = {
    "tensor": (Masked, X, lambda m: m(X)),
    "tuple": (Masked, (X, MASK), lambda m: m(X, MASK)),
    "list": (Masked, [X, MASK], lambda m: m(X, MASK)),
    "none": (Masked, (X, None), lambda m: m(X)),
    "named": (Masked, Pair(X, MASK), lambda m: m(X, MASK)),
    "names": (Masked, {"x": X, "mask": MASK, "scale": 3.0}, lambda m: m(X, MASK, scale=3.0)),
    "arguments": (Masked, Arguments(X, scale=3.0, mask=MASK), lambda m: m(X, MASK, scale=3.0)),
    "mapping": (OfOne, {"x": X, "mask": MASK}, lambda m: m({"x": X, "mask": MASK})),
    "dataclass": (OfOne, Given(X, MASK, 3.0), lambda m: m(Given(X, MASK, 3.0))),
    "named as one": (OfOne, Pair(X, MASK), lambda m: m(Pair(X, MASK))),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_reach_the_model_as_they_are_meant(name: str) -> None:
    kind, inputs, plain = INPUTS[name]
    model = kind()
    batch = Batch.of(inputs)
    assert torch.equal(call_model(model, inputs), plain(model))
    (outputs,) = recomputed(capture_inference(model, inputs), model, batch)
    assert torch.equal(outputs, plain(model))


def test_a_mapping_that_fits_in_part_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\['ids'\]"):
        capture_inference(Masked(), {"x": X, "ids": MASK})
    with pytest.raises(ConfigError, match="lacks some that it needs"):
        call_model(Masked(), {"mask": MASK})


TARGETS: dict[str, tuple[Callable[..., Any], Any]] = {
    "tensor": (mse, X),
    "several": (lambda y, a, b: mse(y, a) + y.pow(2).mean() * b, (X, 3.0)),
    "names": (lambda y, target, weight: mse(y, target) * weight, {"target": X, "weight": 2.0}),
    "mapping": (lambda y, t: mse(y, t["target"]), {"target": X}),
    "arguments": (lambda y, a, *, b: mse(y, a) * b, Arguments(X, b=2.0)),
    "dataclass": (lambda y, t: mse(y, t.x) * t.scale, Given(X, MASK, 2.0)),
    "none": (lambda y: y.pow(2).mean(), None),
    "module": (nn.MSELoss(), {"target": X}),
}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_reach_the_loss_as_they_are_meant(name: str) -> None:
    loss, targets = TARGETS[name]
    model = Masked()
    wanted = call_loss(loss, model(X), targets)
    outputs = recomputed(capture(model, loss, (X, targets)), model, Batch.of(X, targets))
    assert len(outputs) == 1
    assert torch.equal(outputs[0], wanted)


RESULTS: dict[str, tuple[Callable[..., Any], Any]] = {
    "pair": (lambda y, t: (mse(y, t), {"mean": y.mean(), "n": (y > 0).sum()}), {"mean": 1, "n": 2}),
    "mapping": (lambda y, t: {"size": y.abs().max(), "loss": mse(y, t)}, {"size": 1}),
    "twice": (lambda y, t: (lambda v: (v, {"loss": v, "again": v}))(mse(y, t)), {"loss": 1, "again": 2}),
    "one": (lambda y, t: (mse(y, t), y.mean()), 1),
    "several": (lambda y, t: (mse(y, t), y.mean(), y.max()), (1, 2)),
    "number": (lambda y, t: (mse(y, t), {"weight": 0.5, "mean": y.mean()}), {"weight": 0.5, "mean": 1}),
    "of no gradient": (lambda y, t: (mse(y, t), {"target": t.mean()}), {"target": 1}),
    "of one element": (lambda y, t: (mse(y, t).reshape(1), {"mean": y.mean().reshape(1, 1)}), {"mean": 1}),
    "parameter": (lambda y, t: (mse(y, t), None), None),
}


@pytest.mark.parametrize("name", RESULTS)
def test_metrics_come_beside_the_loss(name: str) -> None:
    loss, structure = RESULTS[name]
    model = Masked()
    graph = capture(model, loss, (X, MASK))
    outputs = recomputed(graph, model, Batch.of(X, MASK))
    with_grad = [graph.variables[k].requires_grad for k in graph.output_variables]
    assert with_grad == [True] + [False] * (len(outputs) - 1)
    assert all(t.shape == () for t in outputs)
    assert torch.equal(outputs[0], mse(model(X), MASK))
    numbers = list(range(1, len(outputs)))
    if structure is not None:
        assert graph.output_spec.build(numbers) == structure
    outputs[0].backward()
    assert model.layer.weight.grad is not None


INSIDE: dict[str, Callable[..., Any]] = {
    "scalar": lambda m, y, x, t: mse(y, t),
    "attribute": lambda m, y, x, t: Given(y, t) if t is None else _Output(mse(y, t), y),
    "mapping": lambda m, y, x, t: {"logits": y, "loss": mse(y, t)},
    "ordered": lambda m, y, x, t: OrderedDict(loss=mse(y, t), aux=y.mean()),
    "first": lambda m, y, x, t: (mse(y, t), y, y.mean()),
    "the only scalar": lambda m, y, x, t: (y, mse(y, t)),
}


@dataclass
class _Output:
    loss: Tensor
    logits: Tensor


@covering(given=["merged", "apart", "named"], name=INSIDE)
def test_a_loss_inside_the_model_is_found(name: str, given: str) -> None:
    model = Returns(INSIDE[name])
    pairs = {
        "merged": ({"x": X, "labels": MASK}, None),
        "apart": (X, MASK),
        "named": ({"x": X}, {"labels": MASK}),
    }
    graph = capture(model, None, pairs[given])
    outputs = recomputed(graph, model, Batch.of(*pairs[given]))
    assert torch.equal(outputs[0], mse(model.layer(X), MASK))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda m, y, x, t: y, r"shape \(4, 3\)"),
        (lambda m, y, x, t: {"a": y.mean()}, "a dict"),
        (lambda m, y, x, t: (y, y.mean(), y.max()), "a tuple"),
        (lambda m, y, x, t: x.mean(), "has no gradient"),
    ],
)
def test_no_loss_inside_the_model_is_refused(make: Callable[..., Any], reason: str) -> None:
    with pytest.raises(CaptureError, match=f"must return one scalar.*{reason}"):
        capture(Returns(make), None, (X, MASK))


@pytest.mark.parametrize("model", [nn.Identity(), nn.Linear(3, 3).requires_grad_(False)])
def test_that_a_model_has_nothing_to_train_is_said(model: nn.Module) -> None:
    with pytest.raises(CaptureError, match=f"no parameter of {type(model).__name__} requires a gradient"):
        capture(model, mse, (torch.randn(4, 3), MASK))


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (lambda y, t: None, "it returned a NoneType: give a tensor"),
        (lambda y, t: (y - t).pow(2), r"it returned shape \(4, 3\): take its mean"),
        (lambda y, t: mse(y.detach(), t), "what it returned has no gradient"),
    ],
)
def test_a_loss_that_is_none_says_what_it_returned(loss: Callable[..., Any], reason: str) -> None:
    with pytest.raises(CaptureError, match=reason):
        capture(nn.Linear(3, 3), loss, (torch.randn(4, 3), MASK))


OUTPUTS: dict[str, Callable[..., Any]] = {
    "tensor": lambda m, y, x, t: y,
    "none": lambda m, y, x, t: {"y": y, "nothing": None, "name": "y", "n": 3},
    "dataclass": lambda m, y, x, t: Given(y, x, 2.0),
    "input": lambda m, y, x, t: (x, y),
    "parameter": lambda m, y, x, t: [m.bias, y, m.layer.weight],
    "twice": lambda m, y, x, t: {"a": y, "b": [y, y]},
    "integer": lambda m, y, x, t: (y.argmax(1), y > 0, torch.view_as_complex(torch.stack([y, y], -1))),
    "written input": lambda m, y, x, t: (x.mul_(2.0), y),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_come_in_the_models_structure(name: str) -> None:
    model = Returns(OUTPUTS[name])
    graph = capture_inference(model, X.clone())
    assert len(set(graph.output_variables)) == len(graph.output_variables)
    assert not set(graph.output_variables) & set(graph.input_variables)
    with torch.no_grad():
        wanted = model(X.clone())
        outputs = graph.output_spec.build(recomputed(graph, model, Batch.of(X.clone())))
    torch.testing.assert_close(_plain(outputs), _plain(wanted), rtol=0, atol=0)


def _plain(value: Any) -> Any:
    if isinstance(value, Given):
        return vars(value)
    return {k: v for k, v in value.items() if isinstance(v, Tensor)} if isinstance(value, dict) else value


def test_a_model_without_outputs_is_refused() -> None:
    with pytest.raises(CaptureError, match="returned a str without tensors"):
        capture_inference(Returns(lambda m, y, x, t: "done"), X)
