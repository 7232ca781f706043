"""Changes of a model after it was captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph import capture
from netsplit.graph.checks.notice import Notice


class Tempered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.temperature = 1.0
        self.settings = {"shift": [0.5, 1.0]}
        self.teacher = torch.ones(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) / self.temperature + x @ self.teacher + self.settings["shift"][0]


def noticed(loss: Any = None) -> tuple[Tempered, Notice]:
    model = Tempered()
    loss = loss or nn.CrossEntropyLoss()
    graph = capture(model, loss, (torch.randn(2, 4), torch.tensor([0, 1])))
    return model, Notice(model, loss, graph.constants)


CHANGES: dict[str, Callable[[Tempered], object]] = {
    "'temperature' of the model": lambda model: setattr(model, "temperature", 0.5),
    "'settings' of the model": lambda model: model.settings["shift"].__setitem__(0, 2.0),
    "the tensor 'attribute teacher'": lambda model: model.teacher.mul_(0.9),
    "requires_grad of 'layer.bias'": lambda model: model.layer.bias.requires_grad_(False),
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


def test_what_a_training_loop_does_is_no_change() -> None:
    model, notice = noticed()
    for _ in range(4):
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 4))
        model.train()
        model.load_state_dict({k: t + 1 for k, t in model.state_dict().items()})
        model.best_loss = 0.5  # type: ignore[assignment]
        notice.look()


def test_a_loss_that_changes_is_named_too() -> None:
    loss = nn.CrossEntropyLoss()
    _, notice = noticed(loss)
    loss.label_smoothing = 0.1
    with pytest.raises(NetSplitError, match="'label_smoothing' of the loss"):
        notice.look()


def test_an_annealing_is_found_soon_and_a_late_change_within_so_many_batches() -> None:
    model, notice = noticed()
    for _ in range(100):
        notice.look()
    model.temperature = 2.0

    def look_on() -> None:
        for _ in range(64):
            notice.look()

    with pytest.raises(NetSplitError, match="temperature"):
        look_on()
