"""Predictions of models that do work of their own in train(), eval() or in the forward in evaluation mode."""

from typing import Any, Self

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import CaptureError
from netsplit.graph.batches.batch import Batch
from netsplit.training.captures import Captures
from netsplit.training.options import Training

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


class Merged(Layered):
    """A low-rank update that begins with 0, as LoRA's, and is merged into the weight for evaluation."""

    merged = False

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(2, 4))
        self.up = nn.Parameter(torch.zeros(3, 2))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.merged == mode:
            self.layer.weight.data += (-1 if mode else 1) * self.up @ self.down
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y if self.merged else y + x @ self.down.T @ self.up.T


class MadeInEvaluation(Layered):
    """Right: train() and eval() forget what the first forward in evaluation mode has made of the weight."""

    kept: Tensor | None = None

    def train(self, mode: bool = True) -> Self:
        self.kept = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return F.linear(x, self.layer.weight.sign(), self.layer.bias)
        if self.kept is None:
            self.kept = self.layer.weight.sign().detach()
        return F.linear(x, self.kept, self.layer.bias)


class Counts(Layered):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += not self.training
        y: Tensor = self.layer(x)
        return y


class CountsInABuffer(Layered):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.seen += 1
        return self.layer(x) + self.seen


class Normed(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(self.layer(x)), 0.3, training=True)


def captures(kind: type[nn.Module], check: bool = True, **trained: Any) -> Captures:
    return Captures(kind(), None, Training(check=check), trained=lambda: trained)


REFUSED = {
    Merged: ["Merged overrides train() or eval()", "state_dict"],
    Counts: ["'calls' of the model", "changes at every forward in evaluation mode"],
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_the_captured_graph_would_predict_otherwise_is_refused_with_its_cause(
    kind: type[nn.Module],
) -> None:
    trained = captures(kind)
    before = {k: t.clone() for k, t in trained.model.state_dict().items()}
    attributes = {k: v for k, v in vars(trained.model).items() if not k.startswith("_")}
    with pytest.raises(CaptureError) as e:
        trained.inference(Batch.of(X))
    assert all(word in str(e.value) for word in REFUSED[kind]), e.value
    assert "\n" not in str(e.value)
    assert {k: v for k, v in vars(trained.model).items() if not k.startswith("_")} == attributes
    assert all(torch.equal(t, before[k]) for k, t in trained.model.state_dict().items())
    assert captures(kind, check=False).inference(Batch.of(X))


@pytest.mark.parametrize("kind", [MadeInEvaluation, CountsInABuffer, Normed, nn.Flatten])
def test_what_is_right_is_taken(kind: type[nn.Module]) -> None:
    assert captures(kind).inference(Batch.of(X))
