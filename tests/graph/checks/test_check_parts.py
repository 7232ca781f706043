"""The check of models that are too large to run twice."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph import capture
from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.check import check_capture


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        return x + gain * torch.relu(self.norm(self.layer(x)))


class Scheduled(Block):
    """Its third and later calls compute something else."""

    calls = 0

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        self.calls += 1
        return super().forward(x, gain if self.calls < 3 else 0.5 * gain)


class Tower(nn.Module):
    def __init__(self, blocks: list[nn.Module], width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 3)
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, gain=0.9)
        return self.head(x + self.shift)


WIDTH = 48
LOSS = nn.CrossEntropyLoss()


def checked(model: Tower, monkeypatch: pytest.MonkeyPatch, blocks: float) -> float | None:
    """With the memory to check so many blocks at once, beside what flows through all."""
    batch = Batch.of(torch.randn(6, WIDTH), torch.arange(6) % 3)
    graph = capture(model, LOSS, batch)
    flowing = 2 * sum(variable.nbytes for variable in graph.variables.values())
    free = (5 * blocks * bytes_of(model.blocks[0]) + flowing) / 0.8
    memory: Any = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(available=free))
    monkeypatch.setattr("netsplit.graph.checks.check.psutil", memory)
    return check_capture(model, LOSS, graph, batch)


def bytes_of(module: nn.Module) -> int:
    return sum(t.nbytes for t in (*module.parameters(), *module.buffers()))


def test_blocks_are_checked_one_by_one_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = Tower([Block(WIDTH) for _ in range(4)], WIDTH)
    before = {k: t.clone() for k, t in model.state_dict().items()}
    assert checked(model, monkeypatch, 1.5) is not None
    (record,) = caplog.records
    assert "5 of its modules" in record.message
    assert "1 parameter outside them" in record.message
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_block_that_trains_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Tower([Block(WIDTH), Scheduled(WIDTH), Block(WIDTH)], WIDTH)
    with pytest.raises(CaptureError, match=r"in module 'blocks\.1'.*'calls'"):
        checked(model, monkeypatch, 1.5)
