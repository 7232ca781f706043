"""What replicas would do otherwise than one device is said, or refused."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph import capture
from netsplit.graph.checks.replicated import check_replicas
from netsplit.graph.ir import Graph
from netsplit.partition.methods.auto.auto import replicable


class Follows(nn.Module):
    """A buffer of its own follows what passes, and the next forward reads it."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) - self.mean
        self.mean.lerp_(y.detach().mean(0), 0.1)
        return y


def graph_of_model(model: nn.Module) -> Graph:
    return capture(model, nn.CrossEntropyLoss(), (torch.randn(6, 4), torch.arange(6) % 3))


def test_running_statistics_are_said(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of_model(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    with caplog.at_level(logging.WARNING):
        check_replicas(graph, graph.nodes)
    assert "1.num_batches_tracked" in caplog.text or "1.running_mean" in caplog.text
    assert "2 more" in caplog.text
    assert not replicable(graph)  # for auto chooses nothing that evaluates otherwise


def test_a_buffer_that_the_forward_reads_again_is_refused_on_replicas_alone() -> None:
    graph = graph_of_model(Follows())
    with pytest.raises(NetSplitError, match="'mean'"):
        check_replicas(graph, graph.nodes)
    check_replicas(graph, [])
    assert not replicable(graph)


class Assigns(Follows):
    """The same buffer, given a new value: captured as a write through a view."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) - self.mean
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return y


class Slices(Follows):
    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x) - self.mean
        self.mean[1:] += y.detach().mean(0)[1:]
        return y


@pytest.mark.parametrize("model", [Assigns, Slices])
def test_auto_replicates_no_write_through_a_view(model: type[nn.Module]) -> None:
    graph = graph_of_model(model())
    assert not replicable(graph)
    with pytest.raises(NetSplitError, match="of which every replica"):
        check_replicas(graph, graph.nodes)


def test_a_spectral_norm_is_not_replicated() -> None:
    graph = graph_of_model(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))
    assert not replicable(graph)
    with pytest.raises(NetSplitError, match="of which every replica"):
        check_replicas(graph, graph.nodes)


def test_nothing_is_said_of_what_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of_model(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 3))
    )
    with caplog.at_level(logging.WARNING):
        check_replicas(graph, graph.nodes)
    assert not caplog.records
    assert replicable(graph)
