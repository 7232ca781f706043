"""Batches that a model writes into may not come again, unless they were written anew."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, capture
from netsplit.graph.batches.batch import Batch
from netsplit.training.reuse import Reuse

Y = torch.zeros(4, dtype=torch.int64)
LOSS = nn.CrossEntropyLoss()


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x /= 2
        return self.fc(x)


@pytest.fixture
def graph() -> Graph:
    return capture(Scales(), LOSS, (torch.randn(4, 6), Y))


def test_a_batch_used_again_is_refused(graph: Graph) -> None:
    reuse, batches = Reuse(), [Batch.of(torch.randn(4, 6), Y) for _ in range(3)]
    for batch in batches:
        reuse.look(graph, batch)
    with pytest.raises(NetSplitError, match=r"\(4, 6\) comes in a second batch.*clone"):
        reuse.look(graph, batches[1])


def test_before_the_first_batch_a_warning_says_once_that_its_tensors_stay(
    graph: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    reuse = Reuse()
    reuse.look(capture(nn.Linear(6, 5), LOSS, (torch.randn(4, 6), Y)), Batch.of(torch.randn(4, 6), Y))
    assert not caplog.records, "of a model that writes into nothing"
    for n in range(3):
        reuse.look(graph, Batch.of(torch.randn(4, 6), Y))
        assert caplog.text.count("writes into a tensor of its batch, of shape (4, 6)") == 1, n


def test_parts_of_one_tensor_count_where_they_overlap(graph: Graph) -> None:
    reuse, data = Reuse(), torch.randn(12, 6)
    for part in data.split(4):
        reuse.look(graph, Batch.of(part, Y))
    with pytest.raises(NetSplitError, match="second batch"):
        reuse.look(graph, Batch.of(data[2:6], Y))


def test_a_buffer_that_is_filled_anew_may_come_again(graph: Graph) -> None:
    reuse, buffer = Reuse(), torch.empty(4, 6)
    for _ in range(3):
        reuse.look(graph, Batch.of(buffer.normal_(), Y))


def test_memory_that_was_freed_is_another_tensor(graph: Graph) -> None:
    reuse = Reuse()
    for _ in range(200):
        reuse.look(graph, Batch.of(torch.randn(4, 6), Y))


def test_a_model_that_writes_nothing_takes_a_batch_any_number_of_times() -> None:
    model = nn.Linear(6, 5)
    batch = Batch.of(torch.randn(4, 6), Y)
    graph, reuse = capture(model, LOSS, batch), Reuse()
    for _ in range(3):
        reuse.look(graph, batch)


def test_a_batch_that_failed_may_come_again(graph: Graph) -> None:
    reuse, batch = Reuse(), Batch.of(torch.randn(4, 6), Y)
    with pytest.raises(ValueError, match="failed"), reuse.noted(graph, batch):
        raise ValueError("failed")
    with reuse.noted(graph, batch):
        pass
    with pytest.raises(NetSplitError, match="comes in a second batch"), reuse.noted(graph, batch):
        pass
