"""What sets torch's generator stays whole, as little as can be, and is not told by what it is called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import CaptureError
from netsplit.graph import Graph, capture
from netsplit.graph.recording.whole import ModuleCall

SET = torch.manual_seed  # past whatever looks at torch's own name


class Seeded(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "held":
            with torch.random.fork_rng(devices=[]):
                SET(7)
                return x + torch.rand(4)
        if self.kind == "by state":
            before = torch.default_generator.get_state()
            torch.default_generator.manual_seed(7)
            x = x + torch.rand(4)
            torch.default_generator.set_state(before)
            return x
        if self.kind == "devices":
            torch.cuda.manual_seed_all(7)
        elif self.kind == "left":
            torch.manual_seed(7)
        elif self.kind == "forked":
            with torch.random.fork_rng(devices=[]):
                pass
        return x + torch.rand(4)


class Held(nn.Module):
    """Between two layers, with a dropout after it or not."""

    def __init__(self, kind: str, rate: float) -> None:
        super().__init__()
        self.a, self.seeded, self.b = nn.Linear(4, 4), Seeded(kind), nn.Linear(4, 5)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.b(self.seeded(self.a(x))), self.rate)


def whole(kind: str, rate: float = 0.5) -> list[str]:
    graph = captured(nn.Sequential(Held(kind, rate), nn.ReLU()))
    return [call.__name__ for call in graph.calls.values() if isinstance(call, ModuleCall)]


def captured(model: nn.Module) -> Graph:
    batch = torch.randn(6, 4), torch.arange(6) % 5
    torch.manual_seed(7)  # as the model does
    before = torch.get_rng_state()
    graph = capture(model, nn.CrossEntropyLoss(), batch)
    assert torch.equal(torch.get_rng_state(), before)
    return graph


@pytest.mark.parametrize("kind", ["held", "by state", "devices"])
def test_a_module_that_sets_the_generator_stays_whole(kind: str) -> None:
    assert whole(kind) == ["Seeded"]


def test_a_module_around_it_does_where_draws_follow_from_the_seed_that_it_left() -> None:
    assert whole("left", 0.0) == ["Seeded"]
    assert whole("left", 0.5) == ["Held"]


def test_a_fork_without_draws_changes_nothing() -> None:
    assert whole("forked") == []


def test_a_state_of_an_earlier_step_is_refused_with_its_line() -> None:
    class Stream(nn.Module):
        state: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(3)
                if self.state is not None:
                    torch.set_rng_state(self.state)
                x = F.dropout(x, 0.5)
                self.state = torch.get_rng_state()
            return x

    with pytest.raises(CaptureError, match=r"set_rng_state\(self.state\).* an earlier step left"):
        captured(nn.Sequential(nn.Linear(4, 5), Stream()))
