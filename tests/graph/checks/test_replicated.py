"""What replicas would do otherwise than one device is said, or refused."""

import logging

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph import capture
from netsplit.graph.checks.replicated import check_replicas, replicated_statistics, require_replicable
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


def test_auto_replicates_no_write_through_a_view() -> None:
    graph = graph_of_model(Assigns())
    assert not replicable(graph)
    with pytest.raises(NetSplitError, match="differ between replicas"):
        check_replicas(graph, graph.nodes)


class Counts(nn.Module):
    """A gate that warms up by the number of forwards; what is counted is read as the subclasses do."""

    n: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("n", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return self.layer(x) * (self.n / 10).clamp(max=1.0)


class CountsForLater(Counts):
    """Nothing reads it in training; but one device counts to another number."""

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        return self.layer(x)


class ReadsItsNorm(Counts):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) * (1 + self.norm.running_var.clone())


class Averages(Counts):
    """As `momentum=None`: the count decides how much a batch weighs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x))


READERS = {
    Counts: "n",
    CountsForLater: "n",
    ReadsItsNorm: "norm.running_var",
    Averages: "norm.",
}


@pytest.mark.parametrize("model", READERS, ids=lambda model: model.__name__)
def test_what_the_forward_reads_is_replicated_as_little_as_a_count_of_its_own(
    model: type[nn.Module],
) -> None:
    graph = graph_of_model(model())
    with pytest.raises(NetSplitError, match=f"writes '{READERS[model]}"):
        check_replicas(graph, graph.nodes)
    with pytest.raises(NetSplitError, match="differ between replicas"):
        require_replicable(graph, graph.nodes)
    last = [name for name in graph.nodes if "cross_entropy" in name]
    assert last
    check_replicas(graph, last)


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(3), nn.SyncBatchNorm(3), nn.BatchNorm1d(3, affine=False)],
    ids=lambda norm: str(norm),
)
def test_a_normalisation_that_reads_no_statistics_may_have_replicas(norm: nn.Module) -> None:
    graph = graph_of_model(nn.Sequential(nn.Linear(4, 3), norm, nn.Linear(3, 3)))
    require_replicable(graph, graph.nodes)
    assert "1.running_mean" in replicated_statistics(graph, graph.nodes)
    assert replicated_statistics(graph, []) == []


def test_sparse_gradients_are_not_summed_over_replicas() -> None:
    def words(sparse: bool) -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 3, sparse=sparse), nn.Flatten(), nn.LazyLinear(3))

    example = (torch.randint(9, (6, 2)), torch.randint(3, (6,)))
    for sparse in (False, True):
        model = words(sparse)
        model(example[0])
        graph = capture(model, nn.CrossEntropyLoss(), example)
        if sparse:
            with pytest.raises(NetSplitError, match=r"gradient of '0\.weight' is sparse"):
                require_replicable(graph, graph.nodes)
        else:
            require_replicable(graph, graph.nodes)


def test_nothing_is_said_of_what_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of_model(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), nn.Linear(8, 3))
    )
    with caplog.at_level(logging.WARNING):
        check_replicas(graph, graph.nodes)
    assert not caplog.records
    assert replicable(graph)
