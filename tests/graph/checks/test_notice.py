"""Changes of a model after it was captured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph.checks.notice import Notice

FACTOR = 1.0


class Tempered(nn.Module):
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.temperature = 1.0
        self.settings = {"shift": [0.5, 1.0]}
        self.teacher = torch.ones(4, 3)
        self.options = SimpleNamespace(scale=1.0)
        self.table = np.ones(3, np.float32)
        self.act = torch.tanh
        self.drop = nn.Dropout(0.1)
        self.register_buffer("shift", torch.zeros(3))
        self.losses: list[float] = []
        self.epoch = 0

    k = 1.0

    def helper(self, x: Tensor) -> Tensor:
        return x * self.options.scale * FACTOR + self.table[0] * self.k

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x) / self.temperature + x @ self.teacher + self.settings["shift"][0] + self.shift
        return self.drop(self.act(self.helper(x)))

    def note(self, loss: float) -> None:
        self.losses.append(loss)


def noticed(loss: Any = None) -> tuple[Tempered, Notice]:
    model = Tempered()
    loss = loss or nn.CrossEntropyLoss()
    return model, Notice(model, loss)


def poke(key: str, value: object) -> Callable[[Tempered], object]:
    return lambda model: setattr(model, key, value)


def write_weight(model: Tempered) -> None:
    with torch.no_grad():
        model.layer.weight.clamp_(-0.01, 0.01)


CHANGES: dict[str, Callable[[Tempered], object]] = {
    "'temperature' of the model": poke("temperature", 0.5),
    "'settings' of the model": lambda model: model.settings["shift"].__setitem__(0, 2.0),
    "'k' of the model": poke("k", 3.0),  # of the class before
    "'options' of the model (Tempered).scale": lambda model: setattr(model.options, "scale", 2.0),
    "'teacher' of the model": lambda model: model.teacher.mul_(0.9),
    "'table' of the model": lambda model: model.table.__setitem__(0, 3.0),
    "'act' of the model": poke("act", torch.sigmoid),
    "'forward' of the model": lambda model: setattr(model, "forward", lambda x: x),
    "'helper' of class Tempered": lambda _: setattr(Tempered, "helper", lambda self, x: 2 * x),
    "'p' of drop (Dropout)": lambda model: setattr(model.drop, "p", 0.5),
    "'_forward_hooks' of layer (Linear)": lambda model: model.layer.register_forward_hook(lambda *_: None),
    "the module drop": poke("drop", nn.ReLU()),
    "the mode (train or eval) of drop": lambda model: model.eval(),
    "requires_grad of 'layer.bias'": lambda model: model.layer.bias.requires_grad_(False),
    "the global 'FACTOR'": lambda _: globals().__setitem__("FACTOR", 2.0),
    "'layer.weight' of your model": write_weight,
    "'layer.bias' of your model": lambda model: setattr(model.layer, "bias", nn.Parameter(torch.ones(3))),
    "'shift' of your model": lambda model: model.shift.add_(1),
    "'layer.weight' of your model has": lambda model: model.layer.weight.data.clamp_(-0.01, 0.01),
    "'layer.bias' of your model has": lambda model: setattr(model.layer.bias, "data", torch.ones(3)),
    "'shift' of your model has": lambda model: model.shift.numpy().__setitem__(1, 5.0),
    "'teacher' of the model ": lambda model: model.teacher.data.zero_(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_the_captured_step_does_not_see_is_named(what: str) -> None:
    model, notice = noticed()
    notice.look()
    CHANGES[what](model)
    with pytest.raises(NetSplitError, match="since the model was split") as e:
        notice.look()
    assert what in str(e.value)
    assert "\n" not in str(e.value)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    helper = Tempered.helper
    yield
    Tempered.helper = helper  # type: ignore[method-assign]
    globals()["FACTOR"] = 1.0


def test_what_a_training_loop_does_is_no_change() -> None:
    model, notice = noticed()
    for epoch in range(4):
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 4))
        model.train()
        trained = {k: t + 1 for k, t in model.state_dict().items()}
        model.load_state_dict(trained)
        model.best_loss = 0.5  # type: ignore[assignment]
        model.note(0.5)
        model.epoch = epoch
        notice.look(lambda trained=trained: [trained])


def test_weights_that_are_those_of_no_training_are_named() -> None:
    model, notice = noticed()
    trained = model.state_dict()
    model.load_state_dict({k: t + 1 for k, t in trained.items()})
    with pytest.raises(NetSplitError, match="'layer\\.weight' of your model"):
        notice.look(lambda: [{k: t - 1 for k, t in trained.items()}])


def test_what_the_program_does_to_the_model_itself_is_no_change_and_hides_none() -> None:
    model, notice = noticed()
    with notice.own():
        write_weight(model)
    notice.look()
    model.temperature = 3.0
    with notice.own():
        write_weight(model)
    with pytest.raises(NetSplitError, match="temperature"):
        notice.look()


def test_a_look_walks_only_where_something_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    model, notice = noticed()
    walks = []
    real = notice._reached
    monkeypatch.setattr(notice, "_reached", lambda: walks.append(1) or real())
    for _ in range(3):
        notice.look()
    assert not walks
    model.best_loss = 0.5  # type: ignore[assignment]
    notice.look()
    assert walks


def test_a_loss_that_changes_is_named_too() -> None:
    loss = nn.CrossEntropyLoss()
    _, notice = noticed(loss)
    loss.label_smoothing = 0.1
    with pytest.raises(NetSplitError, match="'label_smoothing' of the loss"):
        notice.look()


def weighted(output: Tensor, target: Tensor) -> Tensor:
    return FACTOR * nn.functional.cross_entropy(output, target)


def test_a_global_that_a_loss_function_reads_is_named() -> None:
    _, notice = noticed(weighted)
    globals()["FACTOR"] = 3.0
    with pytest.raises(NetSplitError, match="the global 'FACTOR' in weighted"):
        notice.look()


class Attributed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.namesake = nn.Linear(4, 3)
        self.register_buffer("buffer_namesake", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.namesake(x) + self.get_buffer("buffer_namesake")


@pytest.mark.parametrize("name", ["namesake", "buffer_namesake"])
def test_a_global_of_the_same_name_as_an_attribute_is_no_matter_of_the_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = Notice(Attributed(), nn.CrossEntropyLoss())
    notice.look()
    monkeypatch.setitem(globals(), name, 7.0)
    notice.look()


def weighted_in_a_comprehension(output: Tensor, target: Tensor) -> Tensor:
    return sum(FACTOR * nn.functional.cross_entropy(output, target) for _ in range(2))  # type: ignore[return-value]


def weighted_by_text(output: Tensor, target: Tensor) -> Tensor:
    return vars(sys.modules[__name__])["FACTOR"] * nn.functional.cross_entropy(output, target)


def weighted_by_module(output: Tensor, target: Tensor) -> Tensor:
    here = sys.modules[__name__]
    return here.FACTOR * nn.functional.cross_entropy(output, target)


@pytest.mark.parametrize("loss", [weighted_in_a_comprehension, weighted_by_text, weighted_by_module])
def test_a_global_that_is_looked_up_in_another_way_is_named(loss: Callable[..., Tensor]) -> None:
    _, notice = noticed(loss)
    globals()["FACTOR"] = 3.0
    with pytest.raises(NetSplitError, match="'FACTOR'"):
        notice.look()
