"""Where operators are known to go sample by sample, the loss of a batch is the mean of its micro-batches'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_unflatten

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, capture
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import CALL
from netsplit.graph.random_draws import node_draws
from netsplit.rewrite.samples.mixing import sample_totals
from tests.rewrite.operator_samples import unlike_samples
from tests.rewrite.test_operator_samples import OPERATORS, plainly_seeded  # noqa: F401

QUICK = (
    "argsort", "bfloat16", "cdist", "chunk", "column_stack", "cummax", "diagonal", "expand", "fft.rfft",
    "floor_divide", "gather", "hstack", "isin", "kthvalue", "linalg.det", "linalg.inv", "logsumexp",
    "masked_fill", "median", "nn.functional.avg_pool1d", "nn.functional.avg_pool2d",
    "nn.functional.bilinear", "nn.functional.cosine_similarity", "nn.functional.grid_sample",
    "nn.functional.hinge_embedding_loss", "nn.functional.margin_ranking_loss", "nn.functional.max_pool1d",
    "nn.functional.max_pool2d", "nn.functional.multilabel_margin_loss", "nn.functional.pairwise_distance",
    "nn.functional.poisson_nll_loss", "norm", "quantile", "repeat", "scatter", "scatter_add",
    "scatter_reduce", "sort", "stft", "take_along_dim", "tensor_split", "topk", "unbind", "unfold",
)  # fmt: skip
LOTS = 8
UNSAFE = ("batch_norm", "jiterator")  # read beyond their statistics without a word; need a GPU
GARBAGE = ("empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty", "empty_permuted")
DRAWS = 3
Loss = Callable[[Tensor, Tensor], Any]


class OfSamples(nn.Module):
    """A mean of what an operator makes of tensors that have samples along one dimension, all other given."""

    def __init__(self, op: Any, given: Any, samples: int, dim: int) -> None:
        super().__init__()
        self.op, self.dim, self.batch = op, dim, list[Tensor]()
        self.given, self.spec = tree_flatten(given)
        self.places = list[int]()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))
        for i, each in enumerate(self.given):
            if isinstance(each, Tensor) and each.dim() > dim and each.shape[dim] == samples:
                self.places.append(i)
                self.batch.append(each.detach().movedim(dim, 0).contiguous())
            elif isinstance(each, Tensor):
                self.register_buffer(f"p{i}", each.detach().clone())

    def forward(self, *batch: Tensor) -> Tensor:
        own = dict(zip(self.places, batch, strict=True))
        given = [
            own[i].movedim(0, self.dim).clone() if i in own else getattr(self, f"p{i}", each)
            for i, each in enumerate(self.given)
        ]
        args, kwargs = tree_unflatten(given, self.spec)
        total = batch[0].double().sin().mean() * self.one
        for made in tree_flatten(self.op(*args, **kwargs))[0]:
            if not isinstance(made, Tensor) or not made.numel():
                continue
            real = torch.view_as_real(made.resolve_conj()) if made.is_complex() else made
            value = real.double().nan_to_num(0.5, 1.5, -1.5)
            total = total + (value.sin().mean() if value.dim() else value)
        return total

    def value(self, batch: list[Tensor]) -> float:
        return float(self(*(each.clone() for each in batch)).detach())


def as_it_is(said: Tensor, _: Tensor) -> Tensor:
    return said


def sampled(operator: OpInfo, most: int) -> Iterator[tuple[OfSamples, Graph]]:
    """Its steps, along every dimension of every tensor, that can be captured and draw nothing."""
    dtype = torch.float64 if torch.float64 in operator.dtypes else torch.int64
    if dtype not in operator.dtypes or any(each in operator.name for each in UNSAFE):
        return
    torch.manual_seed(0)
    samples = list(islice(operator.sample_inputs("cpu", dtype, requires_grad=False), 400))
    for given in unlike_samples([((each.input, *each.args), each.kwargs) for each in samples], most):
        tensors = [each for each in tree_flatten(given)[0] if isinstance(each, Tensor)]
        for dim, size in sorted({(d, n) for each in tensors for d, n in enumerate(each.shape) if n > 1}):
            try:
                model = OfSamples(operator.op, given, size, dim)
                graph = capture(model, as_it_is, Batch.of(tuple(model.batch), torch.zeros(size)))
            except (NetSplitError, RuntimeError, IndexError):
                continue
            if not any(node_draws(node) for node in graph):
                yield model, graph


def is_known(graph: Graph) -> bool:
    totals = sample_totals(graph)
    return totals.mixed is totals.unproven is None and not any(node.op.startswith(CALL) for node in graph)


def otherwise(batch: list[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Rows of the batch as they come, some twice, with noise."""
    rows = torch.randint(len(batch[0]), (len(batch[0]),), generator=generator)
    return [
        each[rows] + torch.randn(each.shape, generator=generator).to(each) * each.is_floating_point()
        if each.dtype != torch.bool
        else each[rows]
        for each in batch
    ]


def apart(model: OfSamples) -> str:
    """Two losses that are to be equal; "" where they are, or the operator refuses fewer samples."""
    samples, generator = len(model.batch[0]), torch.Generator().manual_seed(1)
    half = samples // 2
    for _ in range(DRAWS):
        batch = otherwise(model.batch, generator)
        try:
            whole = model.value(batch)
            first, second = (
                model.value([each[part] for each in batch]) for part in (slice(half), slice(half, None))
            )
        except (RuntimeError, IndexError, ValueError):
            continue
        mean = (half * first + (samples - half) * second) / samples
        if whole != pytest.approx(mean, rel=1e-6, abs=1e-6):
            return f"{whole} instead of {mean}"
    return ""


def looked_at(name: str, most: int) -> tuple[int, list[str]]:
    """How many steps are known to be means over samples, and which of them are not."""
    known, wrong = 0, []
    for operator in OPERATORS[name]:
        for model, graph in sampled(operator, most):
            if not is_known(graph):
                continue
            known += 1
            if difference := apart(model):
                shapes = [tuple(each.shape) for each in model.batch]
                wrong.append(f"{[node.op for node in graph]} of {shapes} along {model.dim}: {difference}")
    return known, wrong


@pytest.mark.parametrize("name", QUICK)
def test_what_is_known_to_go_by_samples_does(name: str) -> None:
    known, wrong = looked_at(name, 3)
    assert not wrong
    assert known


@pytest.mark.slow
@pytest.mark.parametrize("lot", range(LOTS))
def test_of_all_operators_what_is_known_to_go_by_samples_does(lot: int) -> None:
    names = sorted(OPERATORS.keys() - set(GARBAGE))[lot::LOTS]
    results = {name: looked_at(name, 12) for name in names}
    assert not {name: wrong for name, (_, wrong) in results.items() if wrong}
    assert sum(known for known, _ in results.values()) > 50


def rows(outputs: Tensor) -> Tensor:
    return outputs.square().sum(1)


X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 5


def of_each(*given: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Reductions of torch's losses are means where they are told nothing."""
    loss, make = given
    return lambda o, y: loss(o, make(o, y))


KNOWN: dict[str, Loss] = {
    "mse": of_each(nn.MSELoss(), lambda o, y: torch.zeros_like(o)),
    "of one column": of_each(nn.MSELoss(), lambda o, y: y[:, None].expand(-1, 5) / 5),
    "smooth l1": of_each(nn.SmoothL1Loss(), lambda o, y: F.one_hot(y, 5).float()),
    "cross entropy": F.cross_entropy,
    "soft targets": of_each(nn.CrossEntropyLoss(), lambda o, y: F.one_hot(y, 5) * 0.8 + 0.04),
    "multi margin": nn.MultiMarginLoss(),
    "multi label": of_each(nn.MultiLabelSoftMarginLoss(), lambda o, y: F.one_hot(y, 5)),
    "cosine embedding": lambda o, y: F.cosine_embedding_loss(o, o.flip(1), y.clamp(max=1) * 2 - 1),
    "triplet": lambda o, y: F.triplet_margin_loss(o, o * 2, o.flip(1)),
    "poisson": of_each(nn.PoissonNLLLoss(), lambda o, y: F.one_hot(y, 5)),
    "picked": lambda o, y: -o.log_softmax(1)[torch.arange(len(o)), y].mean(),
    "of a table": lambda o, y: (TABLE[y] * rows(o)).mean(),
    "gathered": lambda o, y: -o.log_softmax(1).gather(1, y[:, None]).mean(),
    "a loop": lambda o, y: sum(rows(o).unbind()) / len(o),
    "a sum over the samples": lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(o),
    "two views": lambda o, y: F.cross_entropy(torch.cat([o, o * 2]), torch.cat([y, y])),
    "written into zeros": lambda o, y: F.cross_entropy(filled(o), y),
    "by a mask": lambda o, y: F.cross_entropy(masked(o), y),
    "by whole numbers": lambda o, y: (rows(o) * (y // 2 == 1)).mean(),
    "in a list": lambda o, y: (rows(o) * torch.isin(y, torch.tensor([1, 3]))).mean(),
    "to each an average": lambda o, y: (rows(o) + 0.1 * o.abs().mean()).mean(),
}
TOLD: dict[str, Loss] = {
    "masked_scatter": lambda o, y: torch.zeros_like(o[:, 0]).masked_scatter(o[:, 1] > 0, o[:, 0]).mean(),
    "put_": lambda o, y: o[:, 0].clone().put_(torch.tensor([0]), torch.zeros(1)).mean(),
    "fill_diagonal_": lambda o, y: o.clone().fill_diagonal_(0.0).square().mean(),
    "a pool of one image": lambda o, y: F.max_pool2d(o[None], 3, 1, 1).mean(),
    "a grid over all": lambda o, y: F.grid_sample(
        o[None, None], torch.zeros(1, len(o), 5, 2), align_corners=False
    ).mean(),
    "picked from behind": lambda o, y: o[torch.arange(len(o) - 1, -1, -1), y].mean(),
    "picked by all": lambda o, y: o[:, y].square().mean(),
    "stacked chunks": lambda o, y: F.cross_entropy(o, y) + torch.stack(rows(o).chunk(2)).sum(),
    "a view, averaged and summed": lambda o, y: rows(o).view(2, -1).mean(0).sum(),
    "a sum with an average to each": lambda o, y: (rows(o) + o.abs().mean()).sum(),
    "chunks of unlike sizes": lambda o, y: sum(each.mean() for each in rows(o)[:7].split(3)) + 0 * o.sum(),
    "by the place": lambda o, y: torch.bmm(
        torch.arange(len(o)).view(-1, 1, 1).expand(-1, 1, 5).float(), o[..., None]
    ).mean(),
}
TABLE = torch.linspace(1, 2, 5)


def masked(outputs: Tensor) -> Tensor:
    made = outputs.clone()
    made[made > 0.5] = 0.0
    return made


def filled(outputs: Tensor) -> Tensor:
    made = torch.zeros_like(outputs)
    made[:, :2] = outputs[:, 1:3]
    return made


@pytest.mark.parametrize("loss", KNOWN.values(), ids=KNOWN)
def test_ordinary_losses_are_known_to_be_means(loss: Loss) -> None:
    totals = sample_totals(capture(nn.Linear(6, 5), loss, Batch.of(X, Y)))
    assert totals.mixed is None
    assert totals.unproven is None


@pytest.mark.parametrize("loss", TOLD.values(), ids=TOLD)
def test_what_is_not_known_is_told(loss: Loss) -> None:
    totals = sample_totals(capture(nn.Linear(6, 5), loss, Batch.of(X, Y)))
    assert (totals.mixed or totals.unproven) is not None
