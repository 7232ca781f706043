"""What a training loop asks of a split model: learning rates, states to load, averages, epochs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import netsplit
from netsplit.errors import NetSplitError
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import for_model
from netsplit.partition import Random
from netsplit.planning.plan import Plan
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.training.checkpoints import Checkpoints
from netsplit.training.epochs import History, fit
from netsplit.training.parallel import ParallelModel
from tests.nets import CASES, SGD, TOLERANCE
from tests.runtime.checkpoint.test_checkpoint import planned, samples_of
from tests.workers import Pools, lent_session, lent_to_sessions

LOSS = nn.CrossEntropyLoss()
BATCH = 16


class Tied(nn.Module):
    """One weight by two names, a norm with buffers, a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 12)
        self.norm = nn.BatchNorm1d(12)
        self.back = nn.Linear(12, 12)
        self.again = self.back
        self.idle = nn.Parameter(torch.ones(3))
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.last(torch.tanh(self.again(torch.relu(self.back(x)))))


def fresh(seed: int = 0) -> Tied:
    torch.manual_seed(seed)
    return Tied().double()


def samples(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (BATCH,), generator=generator)


BATCHES = [samples(seed) for seed in range(6)]
GROUPS = [{"match": ["*.bias", "norm.*"], "weight_decay": 0.0, "lr": 0.05}]
MATCHED = netsplit.ParameterGroups(optim.AdamW, lr=0.01, weight_decay=0.2, groups=GROUPS)
RATE = partial(lr.CosineAnnealingLR, T_max=8)
DECAY = 0.8


@pytest.fixture(scope="module")
def parallel(pools: Pools) -> Iterator[ParallelModel]:
    """On two workers; the tests train it further and leave it usable."""
    with lent_to_sessions(pools):
        split = netsplit.parallelize(
            fresh(),
            LOSS,
            BATCHES[0],
            partitioner="round_robin",
            schedule="gpipe",
            optimizer=MATCHED,
            scheduler=RATE,
            ema_decay=DECAY,
        )
    with split:
        yield split


def plain_training(steps: int) -> tuple[Tied, AveragedModel, lr.LRScheduler]:
    """Micro-batches of four, as ``gpipe`` has them."""
    model = fresh()
    averages = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    groups: list[list[nn.Parameter]] = [[], []]
    for name, parameter in model.named_parameters():
        groups[name.endswith(".bias") or name.startswith("norm.")].append(parameter)
    pairs = [{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0, "lr": 0.05}]
    optimizer = optim.AdamW(pairs, lr=0.01, weight_decay=0.2)
    rate = RATE(optimizer)
    for x, y in BATCHES[:steps]:
        for inputs, targets in zip(x.split(4), y.split(4), strict=True):
            (LOSS(model(inputs), targets) / 4).backward()
        optimizer.step()
        averages.update_parameters(model)
        rate.step()
        optimizer.zero_grad()
    return model, averages, rate


def assert_states(state: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert state.keys() == wanted.keys()
    for key, tensor in wanted.items():
        torch.testing.assert_close(state[key], tensor, rtol=TOLERANCE, atol=TOLERANCE, msg=key)


def test_groups_schedule_and_averages_are_those_of_the_plain_loop(
    parallel: ParallelModel, tmp_path: Path
) -> None:
    assert parallel.learning_rate == [0.01, 0.05]
    for batch in BATCHES[:3]:
        parallel.train_batch(*batch)
    model, averages, rate = plain_training(3)
    assert_states(parallel.state_dict(), model.state_dict())
    assert_states(parallel.ema_state_dict(), averages.module.state_dict())
    assert parallel.learning_rate == pytest.approx(rate.get_last_lr())
    parallel.save_checkpoint(tmp_path / "three")
    for batch in BATCHES[3:]:
        parallel.train_batch(*batch)
    model, averages, rate = plain_training(6)
    assert_states(parallel.state_dict(), model.state_dict())
    parallel.load_checkpoint(tmp_path / "three")
    for batch in BATCHES[3:]:
        parallel.train_batch(*batch)
    assert_states(parallel.state_dict(), model.state_dict())
    assert_states(parallel.ema_state_dict(), averages.module.state_dict())
    assert parallel.learning_rate == pytest.approx(rate.get_last_lr())


def test_a_state_is_loaded_as_the_plain_model_loads_it(parallel: ParallelModel) -> None:
    state = fresh(5).state_dict()
    assert parallel.load_state_dict(state) == ([], [])
    assert_states(parallel.state_dict(), state)
    x, _ = BATCHES[0]
    plain = fresh(5).eval()
    torch.testing.assert_close(parallel.predict(x), plain(x), rtol=TOLERANCE, atol=TOLERANCE)
    some = {"last.bias": torch.full((3,), 7.0), "elsewhere": torch.ones(1)}  # of another dtype
    missing, unknown = parallel.load_state_dict(some, strict=False)
    assert (missing, unknown) == tuple(fresh().load_state_dict(some, strict=False))
    assert unknown == ["elsewhere"]
    assert_states(parallel.state_dict(), state | {"last.bias": torch.full((3,), 7.0, dtype=torch.float64)})


def test_learning_rates_are_set_on_every_device(parallel: ParallelModel) -> None:
    parallel.learning_rate = 0.5
    assert parallel.learning_rate == [0.5, 0.5]
    parallel.learning_rate = [0.0, 0.0]
    before = parallel.state_dict()
    parallel.train_batch(*BATCHES[0])
    assert parallel.stepped_rates == (0.0, 0.0)
    after = parallel.state_dict()
    assert all(torch.equal(after[k], before[k]) for k, _ in fresh().named_parameters())
    for bad in (-1.0, [0.1], [0.1, float("inf")]):
        with pytest.raises(
            NetSplitError, match=r"learning_rate is .*: give a number .* 0, or one for each of 2"
        ):
            parallel.learning_rate = bad


# --- epochs -------------------------------------------------------------------------------------------

CHAIN = CASES["chain"]


@pytest.fixture(scope="module")
def session(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with lent_session(pools, tmp_path_factory.mktemp("workers")) as lent:
        yield lent


def plan_with(rate: LearningRate, method: Any = None) -> tuple[ModelStep, Plan]:
    step, plan = planned(CHAIN, for_model(SGD, CHAIN.fresh(), CHAIN.loss), method)
    return replace(step, training=replace(step.training, learning_rate=rate)), plan


def rates_of(history: History) -> list[float]:
    return [done.learning_rates[0] for done in history.iterations]


def test_an_epochs_loss_lowers_the_rate_and_a_resumed_training_goes_on_so(
    session: Session, tmp_path: Path
) -> None:
    rate = LearningRate(lr.ReduceLROnPlateau, every="epoch", factor=0.5, patience=0, threshold=0.9)
    whole = fit(session.deploy(*plan_with(rate)), samples_of(CHAIN), epochs=4)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = SGD([parameter])
    plateau = lr.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.9)
    expected = []
    for epoch in whole.epochs:
        expected += [optimizer.param_groups[0]["lr"]] * 3  # two whole batches and a smaller one
        plateau.step(epoch.train_loss)
    assert rates_of(whole) == expected
    assert len(set(expected)) > 1
    with Checkpoints(tmp_path) as checkpoints:
        fit(session.deploy(*plan_with(rate)), samples_of(CHAIN), epochs=2, checkpoints=checkpoints)
    with Checkpoints(tmp_path, resume=True) as checkpoints:
        model = session.deploy(*plan_with(rate, Random()))
        resumed = fit(model, samples_of(CHAIN), epochs=4, checkpoints=checkpoints)
    assert rates_of(resumed) == expected
    assert [e.train_loss for e in resumed.epochs] == pytest.approx(
        [e.train_loss for e in whole.epochs], rel=TOLERANCE
    )
