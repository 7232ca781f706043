"""What people met that failed once: each trains or predicts as plain PyTorch does, on two workers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.training.parallel import ParallelModel
from tests.test_api import stated
from tests.workers import Pools, lent_to_sessions

RATE = 0.1


@torch.jit.script
def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(quick_gelu(self.a(x)))


class WholeBatch(nn.Module):
    """Stays whole, and adds to every sample what all of the batch decide."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return y + y[y > 0].mean()


def ctc(out: Tensor, t: Tensor, nx: Tensor, nt: Tensor) -> Tensor:
    return nn.CTCLoss(zero_infinity=True)(out.log_softmax(-1).transpose(0, 1), t, nx, nt)


@pytest.fixture(autouse=True)
def lent(pools: Pools) -> Iterator[None]:
    with lent_to_sessions(pools):
        yield


def split(model: nn.Module, loss: Any, batch: tuple[Any, Any], count: int) -> ParallelModel:
    return netsplit.parallelize(
        model,
        loss,
        batch,
        cluster=stated(),
        partitioner="round_robin",
        schedule=netsplit.program.GPipe(count),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE),
        profile="predicted",
        progress=False,
    )


def plain_step(model: nn.Module, losses: list[tuple[float, Callable[[], Tensor]]]) -> float:
    """One step on losses with their parts of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    total = 0.0
    for part, loss in losses:
        value = part * loss()
        value.backward()
        total += value.item()
    optimizer.step()
    optimizer.zero_grad()
    return total


def test_torchscript_trains_on_batches_of_any_size() -> None:
    torch.manual_seed(0)
    model, x, y = Scripted(), torch.randn(8, 6), torch.randint(0, 3, (8,))
    for _ in range(3):
        nn.functional.cross_entropy(model(x), y).backward()
        model.zero_grad()
    cross = nn.functional.cross_entropy
    with split(model, nn.CrossEntropyLoss(), (x, y), 1) as parallel:
        trained = [parallel.train_batch(x, y), parallel.train_batch(x[:7], y[:7])]
    wanted = [plain_step(model, [(1.0, lambda n=n: cross(model(x[:n]), y[:n]))]) for n in (8, 7)]
    assert trained == pytest.approx(wanted, rel=1e-5)


def test_what_depends_on_the_whole_batch_is_predicted_whole() -> None:
    torch.manual_seed(0)
    model, x, y = WholeBatch(), torch.randn(8, 6), torch.randint(0, 3, (8,))
    with split(model, nn.CrossEntropyLoss(), (x, y), 4) as parallel:
        predicted = parallel.predict(x)
    torch.testing.assert_close(predicted, model.eval()(x).detach())


def test_a_ctc_loss_trains() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(6, 7), torch.randn(4, 9, 6)
    targets = torch.randint(1, 7, (4, 3)), torch.full((4,), 9), torch.full((4,), 3)
    with split(model, ctc, (x, targets), 2) as parallel:
        trained = [parallel.train_batch(x, targets) for _ in range(2)]

    def half(i: int) -> tuple[float, Callable[[], Tensor]]:
        return 0.5, lambda: ctc(model(x[i : i + 2]), *(t[i : i + 2] for t in targets))

    halves = [half(0), half(2)]
    assert trained == pytest.approx([plain_step(model, halves) for _ in range(2)], rel=1e-5)
