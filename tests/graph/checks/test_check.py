"""The check of a capture: what it finds, what it says, what it leaves as it was."""

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError, ConfigError
from netsplit.graph import Graph, capture
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.check import check_capture
from netsplit.graph.recording.stand_ins import refuse_tensors
from netsplit.training.captures import checked_capture
from tests.cover import covering
from tests.nets import CASES, DRAWING, DROPPED, STAGES

COUNT = SimpleNamespace()
CALLS = [0]
"""A global that a forward below counts in."""


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


class Counts(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return self.layer(x) / self.step


class CountsForLogs(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.stats = {"calls": [0]}

    def forward(self, x: Tensor) -> Tensor:
        self.stats["calls"][0] += 1
        return self.layer(x)


class CountsInAGlobal(Layered):
    def forward(self, x: Tensor) -> Tensor:
        CALLS[0] += 1
        return self.layer(x) * CALLS[0]


class CountsFromTheFifthStep(Layered):
    def forward(self, x: Tensor) -> Tensor:
        COUNT.step = getattr(COUNT, "step", 0) + 1
        return self.layer(x) * (2 if COUNT.step > 4 else 1)


class CountsForAWarmUp(Layered):
    """What the counter does comes long after the steps that are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SimpleNamespace(step=0)

    def forward(self, x: Tensor) -> Tensor:
        self.state.step += 1
        return self.layer(x) * min(1.0, 0.1 + self.state.step // 1000)


class StaleAlias(Layered):
    """Keeps an alias of the last step's hidden state outside of what a capture knows."""

    def __init__(self) -> None:
        super().__init__()
        self.past = SimpleNamespace(hidden=None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if self.past.hidden is not None:
            y = y + self.past.hidden
        self.past.hidden = y.detach()
        return y


class PythonsRandom(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * random.random()


class NumPysRandom(Layered):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.from_numpy(np.random.rand(4).astype(np.float32))


class GrowsAList(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.losses.append(0.5)
        return self.layer(x)


FOUND: dict[type[nn.Module], str] = {
    Counts: r"differs at a second step.*; 'step' of the model \(Counts\) changes at every step",
    CountsForLogs: r"'stats' of the model \(CountsForLogs\)\['calls'\]\[0\]",
    CountsInAGlobal: r"the loss differs at a second step",
    StaleAlias: r"the loss differs at a second step.*the usual cause is state kept in Python",
    CountsFromTheFifthStep: r"the loss of the same batch differs from step to step",
    CountsForAWarmUp: r"'state' of the model \(CountsForAWarmUp\).step changes at every step",
    PythonsRandom: r"draws from Python's random, which a captured step would do only once",
    NumPysRandom: r"draws from numpy.random, which a captured step would do only once",
    GrowsAList: r"'losses' of the model \(GrowsAList\) changes",
}


def batch_of(rows: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(3)
    return Batch.of(*(torch.randn(rows, 4, generator=generator) for _ in range(2)))


@pytest.mark.parametrize("kind", FOUND, ids=lambda kind: kind.__name__)
def test_state_that_no_tensor_holds_is_found(kind: type[nn.Module]) -> None:
    with pytest.raises(CaptureError, match=FOUND[kind]) as e:
        checked_capture(kind(), nn.MSELoss(), batch_of())
    assert "\n" not in str(e.value)
    assert "check=false" not in str(e.value)


def test_check_false_does_not_look() -> None:
    graph = checked_capture(GrowsAList(), nn.MSELoss(), batch_of(), check=False)
    assert any(node.kind == "linear" for node in graph)


def _with(graph: Graph, **changed: Any) -> Graph:
    """With one linear's arguments changed: a capture that has gone wrong."""
    node = graph.nodes["linear"]
    return replace(graph, nodes=graph.nodes | {"linear": replace(node, **changed)})


def test_a_value_baked_in_is_found_at_other_values() -> None:
    model, batch = Layered(), batch_of()
    model.forward = lambda x: model.layer(x) * x.detach().mean()  # type: ignore[method-assign]
    graph = capture(model, nn.MSELoss(), batch)
    name = next(node.name for node in graph if node.kind == "mean")
    baked = float(batch.tensors[0].mean())
    node = graph.nodes[name]
    wrong = replace(node, op="aten.full.default", inputs=(), args=((), baked))
    with pytest.raises(CaptureError, match="the loss differs at a second step with other values"):
        check_capture(model, nn.MSELoss(), replace(graph, nodes=graph.nodes | {name: wrong}), batch)


def test_a_wrong_backward_is_found_by_the_parameter_that_it_is_wrong_for() -> None:
    model, batch = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)), batch_of()
    graph = capture(model, nn.MSELoss(), batch)
    with pytest.raises(CaptureError, match=r"the gradient of '0.weight' differs at the first step \(only"):
        check_capture(model, nn.MSELoss(), _with(graph, no_grad=True), batch)


def test_a_parameter_that_the_graph_does_not_use_is_found() -> None:
    model, batch = nn.Linear(4, 4), batch_of()
    graph = capture(model, nn.MSELoss(), batch)
    args = (*graph.nodes["linear"].args[:2],)
    kept = {"weight": graph.initializers["weight"]}
    wrong = replace(_with(graph, args=args, initializers=("weight",)), initializers=kept)
    with torch.no_grad():
        model.bias.zero_()
    with pytest.raises(CaptureError, match=r"'bias', which the captured step does not use|the loss differs"):
        check_capture(model, nn.MSELoss(), wrong, batch)


GOOD = {**CASES, DROPPED.name: DROPPED, DRAWING.name: DRAWING, STAGES.name: STAGES}


@covering(name=GOOD, dtype=[torch.float32, torch.float64])
def test_good_models_pass(name: str, dtype: torch.dtype) -> None:
    case = GOOD[name]
    inputs = tuple(t.to(dtype) if t.is_floating_point() else t for t in case.inputs)
    model = case.fresh().to(dtype)
    batch = Batch.of(inputs, case.targets)
    graph = capture(model, case.loss, batch)
    seconds = check_capture(model, case.loss, graph, batch)
    assert seconds is not None


class Draws(Layered):
    """Draws, counts in a buffer, and holds things that a run must not change for good."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.cache: dict[str, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        if "scale" not in self.cache:
            self.cache["scale"] = torch.ones(4)
        self.seen += 1
        return nn.functional.dropout(self.norm(self.layer(x)), 0.5, self.training) * self.cache["scale"]


@pytest.mark.parametrize("spoil", [lambda graph: graph, lambda graph: _with(graph, no_grad=True)])
def test_the_model_its_gradients_the_generators_and_globals_are_left_as_they_were(
    spoil: Callable[[Graph], Graph],
) -> None:
    """Where the check passes, and where it refuses."""
    model, loss, batch = Draws(), nn.MSELoss(), batch_of()
    model.norm.eval()
    loss(model(batch.tensors[0]), batch.tensors[1]).backward()
    model.cache.clear()
    graph = spoil(capture(model, loss, batch))
    grads = {k: p.grad for k, p in model.named_parameters()}
    values = {k: t.clone() for k, t in model.state_dict().items()}
    given = [t.clone() for t in batch.tensors]
    torch.manual_seed(11), random.seed(11), np.random.seed(11)
    wanted = (torch.rand(3), random.random(), np.random.rand())
    torch.manual_seed(11), random.seed(11), np.random.seed(11)
    identities = {k: id(t) for k, t in model.state_dict(keep_vars=True).items()}
    try:
        check_capture(model, loss, graph, batch)
    except CaptureError:
        assert spoil(graph) == graph != capture(model, loss, batch)
    assert torch.equal(torch.rand(3), wanted[0])
    assert (random.random(), np.random.rand()) == wanted[1:]
    assert {k: id(t) for k, t in model.state_dict(keep_vars=True).items()} == identities
    assert all(p.grad is grads[k] for k, p in model.named_parameters())
    assert all(torch.equal(t, values[k]) for k, t in model.state_dict().items())
    assert all(map(torch.equal, batch.tensors, given))
    assert model.cache == {}
    assert (model.training, model.norm.training) == (True, False)


def test_models_without_values_are_not_checked() -> None:
    model = nn.Linear(4, 4, device="meta")
    batch = Batch.of(torch.empty(2, 4, device="meta"), torch.empty(2, 4, device="meta"))
    assert check_capture(model, nn.MSELoss(), capture(model, nn.MSELoss(), batch), batch) is None


def test_without_the_memory_for_it_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=100))
    monkeypatch.setattr("netsplit.graph.checks.plain.psutil", memory)
    checked_capture(Counts(), nn.MSELoss(), batch_of())
    assert "Training of Counts is not compared with plain PyTorch: that needs" in caplog.text


def test_a_buffer_that_a_backward_needs_may_not_be_written_by_the_next_micro_batch() -> None:
    class Overwrites(Layered):
        def forward(self, x: Tensor) -> Tensor:
            self.seen.data.copy_(x.detach().mean(0))
            return self.layer(x) * self.seen

    with pytest.raises(CaptureError, match=r"Overwrites cannot .* two micro-batches in flight.*clone") as e:
        checked_capture(Overwrites(), nn.MSELoss(), batch_of())
    assert "\n" not in str(e.value)


def test_a_model_that_does_not_run_in_plain_pytorch_is_told_with_its_line() -> None:
    model, batch = Layered(), batch_of()
    graph = capture(model, nn.MSELoss(), batch)

    def broken(x: Tensor) -> Tensor:
        raise ValueError("out of order")

    model.forward = broken  # type: ignore[method-assign]
    with pytest.raises(
        CaptureError, match=r"Layered does not train on this batch in plain PyTorch.* at .*test_check.py:\d+"
    ):
        check_capture(model, nn.MSELoss(), graph, batch)


@torch.jit.script
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


class Net(nn.Module):
    def __init__(self, name: str = "a") -> None:
        super().__init__()
        self._modules[name], self.b, self.name = nn.Linear(6, 6), nn.Linear(6, 3), name

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(quick_gelu(self._modules[self.name](x)))  # type: ignore[misc]
        return y


class Cast(Net):
    def forward(self, x: Tensor) -> Tensor:
        self._modules["a"].double()  # type: ignore[union-attr]
        return super().forward(x.double()) if x.dtype == torch.float64 else self.b(x)


def batch() -> Batch:
    return Batch.of(torch.randn(4, 6), torch.randint(0, 3, (4,)))


@pytest.mark.parametrize("warm", [0, 3])
def test_a_scripted_function_trains_whether_it_has_run_before_or_not(warm: int) -> None:
    model, own = Net(), batch()
    for _ in range(warm):
        model(own.tensors[0]).sum().backward()
    assert "aten.sigmoid.default" in {node.op for node in checked_capture(model, nn.CrossEntropyLoss(), own)}


def test_a_forward_that_casts_a_layer_leaves_the_users_own_as_it_was() -> None:
    model = Cast()
    checked_capture(model, nn.CrossEntropyLoss(), batch())
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_lazy_modules_that_never_ran_are_named() -> None:
    with pytest.raises((CaptureError, ConfigError), match=r"'0\.weight' of Sequential has no shape yet"):
        refuse_tensors(nn.Sequential(nn.LazyLinear(3)))
