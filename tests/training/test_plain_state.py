"""The state of models that give and take their own: other keys, computed values, extra state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.runtime.checkpoint.shares import load_plain
from netsplit.training.training_state import loaded, plain_state
from tests.workers import Pools, lent_to_sessions


class Inner(nn.Module):
    """Gives the state of what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner.state_dict(*args, **kwargs)

    def load_state_dict(self, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.inner.load_state_dict(state, *args, **kwargs)


class Halved(nn.Module):
    """Keeps twice the weight, and says so in its state; a table that no state has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.extra = {"unit": 2, "norm": torch.zeros(())}
        self._register_state_dict_hook(_halved)
        self.register_load_state_dict_pre_hook(_doubled)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y

    def get_extra_state(self) -> dict[str, Any]:
        return self.extra | {"norm": self.layer.weight.norm()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.extra = state


def _halved(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> dict[str, Any]:
    return {k.replace("layer.", "core."): v / 2 if isinstance(v, Tensor) else v for k, v in state.items()}


def _doubled(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for k in [k for k in state if k.startswith("core.")]:
        state[k.replace("core.", "layer.")] = 2 * state.pop(k)


def seeded(kind: type[nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def values_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: t.detach().clone() for k, t in (*model.named_parameters(), *model.named_buffers())}


def assert_equal(state: Any, wanted: Any) -> None:
    assert state.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, dict):
            assert_equal(state[key], value)
        elif isinstance(value, Tensor):
            assert torch.equal(state[key], value), key
        else:
            assert state[key] == value


@pytest.mark.parametrize("kind", [Inner, Halved])
def test_a_state_is_what_the_model_itself_gives_of_trained_values(kind: type[nn.Module]) -> None:
    model, trained = seeded(kind, 1), seeded(kind, 2)
    before = values_of(model)
    state = plain_state(model, values_of(trained))
    assert_equal(state, trained.state_dict())
    assert getattr(state, "_metadata", None) == getattr(trained.state_dict(), "_metadata", None)
    assert_equal(values_of(model), before)
    other = seeded(kind, 3)
    other.load_state_dict(state)
    assert_equal(values_of(other), values_of(trained))


@pytest.mark.parametrize("kind", [Inner, Halved])
def test_a_state_is_taken_as_the_model_itself_takes_it(kind: type[nn.Module]) -> None:
    model, other = seeded(kind, 1), seeded(kind, 2)
    before = values_of(model)
    taken, missing, unknown = loaded(model, before, other.state_dict(), True)
    assert (missing, unknown) == ([], [])
    assert_equal(taken, values_of(other))
    assert_equal(values_of(model), before)


@pytest.mark.usefixtures("unmeasured")
def test_a_trained_model_is_saved_and_goes_on_under_its_own_keys(pools: Pools, tmp_path: Path) -> None:
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    model, loss = seeded(Halved, 1), nn.CrossEntropyLoss()
    plain = seeded(Halved, 1)
    step = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(2):
        step.zero_grad()
        loss(plain(x), y).backward()
        step.step()
    stated = replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9)
    with lent_to_sessions(pools), netsplit.parallelize(
        model, loss, (x, y), cluster=stated, partitioner="m_topo", schedule="single_batch",
        optimizer=lambda p: torch.optim.SGD(p, 0.1),
    ) as parallel:  # fmt: skip
        parallel.train_batch(x, y)
        parallel.save_checkpoint(tmp_path / "one")
        parallel.train_batch(x, y)
        parallel.save(tmp_path / "model.pt")
        trained = parallel.state_dict()
        parallel.load_checkpoint(tmp_path / "one")
        parallel.train_batch(x, y)
        again = parallel.state_dict()
        parallel.load_state_dict(model.state_dict())
        assert_equal(parallel.state_dict(), seeded(Halved, 1).state_dict())
        parallel.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
        parallel.save_checkpoint(tmp_path / "two")
    for key in ("core.weight", "core.bias"):
        torch.testing.assert_close(trained[key], plain.state_dict()[key])
        assert torch.equal(again[key], trained[key])
    load_plain(tmp_path / "two", model)
    assert_equal(model.state_dict() | {"_extra_state": {}}, trained | {"_extra_state": {}})
