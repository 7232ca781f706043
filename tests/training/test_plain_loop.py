"""What surrounds the captured step (sizes, settings, hooks, state) is as in a plain loop, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

import netsplit
from netsplit.partition.methods.baselines import Random
from netsplit.program.schedules import GPipe
from netsplit.training.parallel import ParallelModel
from tests.cover import few
from tests.nets import SGD
from tests.workers import Pools, cpu_workers, lent_to_sessions

Pair = tuple[Tensor, Tensor]
LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _lent(pools: Pools, unmeasured: None) -> Iterator[None]:
    with lent_to_sessions(pools):
        yield


def net() -> nn.Module:
    torch.default_generator.manual_seed(7)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def pair(seed: int, size: int = 8) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 12, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 5, (size,), generator=generator)


def split(model: nn.Module, loss: Any = LOSS, batch: Any = None, **options: Any) -> ParallelModel:
    given = {"schedule": GPipe(4), "optimizer": SGD, "partitioner": Random()} | options
    example = pair(0) if batch is None else batch
    return netsplit.parallelize(model, loss, example, cluster=cpu_workers(2), progress=False, **given)


def plain_step(
    model: nn.Module, optimizer: optim.Optimizer, batch: Pair, size: int = 2, loss: Any = LOSS
) -> float:
    total = 0.0
    for x, y in zip(*(t.split(size) for t in batch), strict=True):
        value = loss(model(x), y) * (len(x) / len(batch[0]))
        value.backward()
        total += float(value.detach())
    optimizer.step()
    optimizer.zero_grad()
    return total


def assert_same(parallel: ParallelModel, model: nn.Module) -> None:
    state = parallel.state_dict()
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-9, atol=1e-9)


# --- sizes --------------------------------------------------------------------------------------------


def test_where_the_example_is_not_cut_no_batch_is() -> None:
    """A sum over a batch of twice as many samples is not the mean of two sums."""
    total, model = nn.CrossEntropyLoss(reduction="sum"), net()
    plain = optim.SGD(model.parameters(), lr=1e-3)
    optimizer = partial(optim.SGD, lr=1e-3)
    with split(net(), total, schedule="single_batch", optimizer=optimizer) as parallel:
        for seed, size in enumerate((8, 4, 16, 12)):
            loss = parallel.train_batch(*pair(seed, size))
            assert loss == pytest.approx(plain_step(model, plain, pair(seed, size), size, total))
        assert_same(parallel, model)


# --- settings that are tensors ------------------------------------------------------------------------


# --- what changes while training goes on --------------------------------------------------------------


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "mode": (lambda model: model.eval(), "model's mode"),
    "frozen": (
        lambda model: model[0].weight.requires_grad_(False),
        "requires_grad of the model's parameters",
    ),
    "in place": (lambda model: model[0].weight.detach().mul_(2), "model's parameters"),
    "data": (lambda model: setattr(model[0].weight, "data", 2 * model[0].weight.data), "model's parameters"),
    "another": (
        lambda model: setattr(model[0], "weight", nn.Parameter(2 * model[0].weight)),
        "model's parameters",
    ),
}


@pytest.mark.parametrize("what", few(list(CHANGES), 2))
def test_what_trains_is_a_copy_and_a_change_is_told_once(what: str, caplog: pytest.LogCaptureFixture) -> None:
    change, told = CHANGES[what]
    model, plain_model = net(), net()
    plain = SGD(plain_model.parameters())
    with split(model) as parallel:
        for seed in range(3):
            assert parallel.train_batch(*pair(seed)) == pytest.approx(
                plain_step(plain_model, plain, pair(seed))
            )
            if seed == 0:
                change(model)
        assert_same(parallel, plain_model)
    assert [told in record.message for record in caplog.records if "after parallelize" in record.message] == [
        True
    ]


def test_a_copy_of_what_trains_in_the_model_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    with split(model) as parallel:
        parallel.train_batch(*pair(0))
        for assign in (False, True):
            model.load_state_dict(parallel.state_dict(), assign=assign)
            parallel.train_batch(*pair(1))
    assert not any("after parallelize" in record.message for record in caplog.records)


def test_other_shapes_are_captured_of_the_copy() -> None:
    """Whatever has been set on the model since."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inward, self.outward = nn.Linear(12, 8), nn.Linear(8, 5)
            self.act, self.scale = nn.ReLU(), 0.5

        def forward(self, x: Tensor) -> Tensor:
            return self.outward(self.act(self.inward(x)) * self.scale)

    torch.manual_seed(3)
    model = Scaled().double()
    plain_model = copy.deepcopy(model)
    plain = SGD(plain_model.parameters())
    inputs, targets = pair(0)
    with split(model) as parallel:
        model.scale, model.act = 3.0, nn.Tanh()
        few = (inputs[:6], targets[:6])
        assert parallel.train_batch(*few) == pytest.approx(plain_step(plain_model, plain, few))
        assert_same(parallel, plain_model)
    assert model.scale == 3.0


# --- state --------------------------------------------------------------------------------------------


class Weighing(nn.Module):
    """It trains a weight of its own, counts, and knows the model's last bias."""

    def __init__(self, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.bias = bias
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.count += 1
        return F.cross_entropy(outputs * self.weight, targets) + 0.1 * self.bias.square().sum()


def test_the_state_of_a_loss_can_be_had() -> None:
    def both() -> tuple[nn.Module, Weighing]:
        model = net()
        return model, Weighing(model[-1].bias)  # type: ignore[index, union-attr, arg-type]

    (model, loss), (split_model, split_loss) = both(), both()
    plain = SGD([*model.parameters(), loss.weight])
    with split(split_model, split_loss) as parallel:
        for seed in range(3):
            parallel.train_batch(*pair(seed))
            plain_step(model, plain, pair(seed), loss=loss)
        assert_same(parallel, model)
        state = parallel.loss_state_dict()
    assert state.keys() == loss.state_dict().keys()
    for key, tensor in loss.state_dict().items():
        torch.testing.assert_close(state[key], tensor, rtol=1e-9, atol=1e-9)


# --- lists --------------------------------------------------------------------------------------------
