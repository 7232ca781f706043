"""Batches on which a model has other operators than on the one that its rewrites were chosen for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import netsplit
from netsplit.data import Data
from netsplit.errors import NetSplitError
from netsplit.graph import Graph
from netsplit.partition.base import Problem
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.program import GPipe
from netsplit.rewrite import Split, applied, replicate, split_axes
from netsplit.rewrite.tasks import sizes_in_proportion
from netsplit.training.epochs import fit
from tests.cover import covering
from tests.nets import SGD
from tests.runtime.references import plain_loop
from tests.workers import Pools, lent_to_sessions

LOSS = nn.CrossEntropyLoss()
Batch = tuple[tuple[Tensor], Tensor]


class Swapped(nn.Module):
    """Two alike layers, of which short texts have the second first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.a, self.b) if x.shape[1] > 4 else (self.b, self.a)
        made: Tensor = self.c(second(torch.tanh(first(x)))).mean(1)
        return made


class Shortened(Swapped):
    """Short texts have one layer more."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x) if x.shape[1] > 4 else self.a(torch.tanh(self.b(self.a(x))))
        made: Tensor = self.c(self.b(h)).mean(1)
        return made


class FewSamples(Swapped):
    """What lies in memory in order already is not copied: of one sample."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).transpose(0, 1).contiguous()
        made: Tensor = self.c(self.b(torch.tanh(h))).mean(0)
        return made


class Attending(nn.Module):
    """Samples behind tokens, as is torch's default."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.last(self.layer(x.transpose(0, 1)).mean(0))
        return made


@dataclass
class Given(Partitioner):
    """Parts by their numbers."""

    name = "given"
    rewrites: tuple[Split, ...] = ()
    replicas: int = 0

    def choose(self, problem: Problem) -> Choice:
        own = tuple(_sized(each, problem.graph) for each in self.rewrites)
        rewrites = replicate(problem.graph, self.replicas) if self.replicas else own
        graph = applied(problem.graph, rewrites)
        return Choice(devices_of_nodes(graph, problem.cluster.names), rewrites=rewrites)


def _sized(split: Split, graph: Graph) -> Split:
    """Axis 0 is of texts in one model, of words in another, of which there are more."""
    size = split_axes(graph, split.node)[split.axis]
    return replace(split, sizes=sizes_in_proportion(split.sizes, size, graph.batch_size))


def batch(samples: int, length: int, seed: int) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, length, 6, generator=draw, dtype=torch.float64)
    return (x,), torch.randint(3, (samples,), generator=draw)


def drawn(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


@contextmanager
def trained(kind: type[nn.Module], method: Given, pools: Pools) -> Iterator[netsplit.ParallelModel]:
    """On two workers, in micro-batches of four texts of 6."""
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(
            drawn(kind), LOSS, batch(8, 6, 0), partitioner=method, schedule=GPipe(2), optimizer=SGD,
            progress=False,
        ) as model,
    ):  # fmt: skip
        yield model


METHODS = {
    "columns": Given((Split("linear", 2, (4, 2)),)),
    "columns and rows": Given((Split("linear", 2, (4, 2)), Split("linear_1", "input.2", (1, 5)))),
    "samples": Given((Split("linear", 0, (2, 2)), Split("linear_1", 0, (1, 3)))),
    "copies": Given(replicas=2),
}


@covering(kind=[Swapped, Shortened], method=METHODS)
def test_other_operators_train_the_same_parameters(
    kind: type[nn.Module], method: str, pools: Pools, unmeasured: None
) -> None:
    """Whole micro-batches, and a smaller last one, before and after usual batches."""
    shapes = ((8, 6), (8, 3), (7, 3), (8, 6), (7, 6))
    batches = [batch(samples, length, seed) for seed, (samples, length) in enumerate(shapes)]
    wanted = plain_loop(drawn(kind), LOSS, batches, 4, SGD)
    with trained(kind, METHODS[method], pools) as model:
        losses = [model.train_batch(*each) for each in batches]
        state, said = model.state_dict(), model.predict(*batches[1][0])
    assert losses == pytest.approx(wanted.losses, rel=1e-12)
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-12, atol=1e-12)
    reference = drawn(kind)
    reference.load_state_dict(state)
    torch.testing.assert_close(said, reference.eval()(*batches[1][0]), rtol=1e-12, atol=1e-12)


def test_attention_trains_and_predicts_fewer_samples_than_parts(pools: Pools, unmeasured: None) -> None:
    """Micro-batches of four in three parts; of a last one some are empty."""
    batches = [batch(samples, 6, seed) for seed, samples in enumerate((8, 1, 5, 6, 8, 2))]
    wanted = plain_loop(drawn(Attending), LOSS, batches, 4, SGD)
    with trained(Attending, Given(replicas=3), pools) as model:
        losses = [model.train_batch(*each) for each in batches]
        state, said = model.state_dict(), model.predict(*batches[1][0])
    assert losses == pytest.approx(wanted.losses, rel=1e-12)
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-12, atol=1e-12)
    reference = drawn(Attending)
    reference.load_state_dict(state)
    torch.testing.assert_close(said, reference.eval()(*batches[1][0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_last_batch_that_cannot_be_trained_is_refused_before_the_first_step(
    method: str, pools: Pools, unmeasured: None
) -> None:
    """Leaves five of 21 samples, of which the last micro-batch has one, and other operators."""
    (x,), y = batch(21, 6, 0)
    texts = TensorDataset(x, y)
    data = Data("texts", texts, texts, num_classes=3, classes=("a", "b", "c"))
    with trained(FewSamples, METHODS[method], pools) as model:
        with pytest.raises(NetSplitError, match=r"last batch has 5 samples: .*; drop_last=true skips it"):
            fit(model, data, epochs=1)
        assert model.trained_batches == 0
        assert len(fit(model, data, epochs=1, drop_last=True).iterations) == 2
