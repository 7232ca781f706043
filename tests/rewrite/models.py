"""Small models with the operators that can be cut, in double precision, and what comes of a step of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.graph import Graph, capture, initial_values, rebuild
from netsplit.rewrite import Split, also, split_axes
from netsplit.runtime.checkpoint.torch_format import whole_tensors

__all__ = ["STEPS", "Step", "StepResult", "assert_same_step", "result_of", "split_operator"]

ROUNDING = 1e-12
"""Fraction of the largest gradient: sums of at most some hundred reordered terms, each rounded to 2^-53."""


class Grouped(nn.Module):
    """Convolutions in groups, transposed and dense ones, GroupNorm, BatchNorm and both kinds of pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(4, 8, 3, padding=1, groups=4)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 8, 3, padding="same", groups=8, bias=False)
        self.groups = nn.GroupNorm(4, 8)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.head = nn.Linear(6 * 2 * 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.wide(x)))
        x = F.max_pool2d(F.relu(self.groups(self.deep(x))), 2)
        x = F.avg_pool2d(torch.tanh(self.up(x)), 2)
        return self.head(x.view(len(x), 6, 2, 2).flatten(1))


class Transformer(nn.Module):
    """A fused projection of queries, keys and values, and an embedding whose table is the output's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8, padding_idx=3)
        self.positions = nn.Parameter(torch.linspace(-1, 1, 40).view(5, 8))
        self.before = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.project = nn.Linear(8, 8)
        self.after = nn.LayerNorm(8)
        self.widen = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions
        query, key, value = self.qkv(self.before(x)).chunk(3, dim=-1)
        heads = [t.view(len(t), 5, 2, 4).transpose(1, 2) for t in (query, key, value)]
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).reshape(len(x), 5, 8))
        x = x + self.narrow(F.gelu(self.widen(self.after(x))))
        return F.linear(x, self.words.weight).transpose(1, 2)


class Recurrent(nn.Module):
    """Two layers in both directions, and a softmax over what they say at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(6, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.score = nn.Linear(8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        said, (state, _) = self.cells(x)
        weights = torch.softmax(self.score(said).squeeze(2), 1).unsqueeze(1)
        return self.head(torch.bmm(weights, said).squeeze(1)) + state.sum((0, 2)).unsqueeze(1)


class Products(nn.Module):
    """Products of matrices as they come, broadcasting, padding, stacking, and sums over dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.linspace(-1, 1, 24).view(6, 4))
        self.addend = nn.Parameter(torch.linspace(0, 1, 4))
        self.table = nn.Parameter(torch.linspace(-1, 1, 60).view(3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.addend, x, self.left)
        z = torch.matmul(y.unsqueeze(0).expand(3, len(x), 4), self.table)
        both = torch.stack([z, torch.where(z > 0, z, 0.1 * z)], 1).sum(0).mean(0)
        return F.pad(both, (0, 1))[:, :5] + torch.logsumexp(y, 1, keepdim=True)


class Scalars(nn.Module):
    """Two layers, whose loss is a mean over pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(6, 8)
        self.outward = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outward(torch.relu(self.inward(x)))


@dataclass(frozen=True)
class Step:
    """A model with a loss and a batch of eight samples; those of fewer are its first ones."""

    build: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor

    def fresh(self) -> nn.Module:
        torch.default_generator.manual_seed(7)
        return self.build().double()

    @cache  # noqa: B019 - of the few steps below, which live as long as the tests
    def graph(self, samples: int = 8) -> Graph:
        return capture(self.fresh(), self.loss, (self.inputs[:samples], self.targets[:samples]))

    @cache  # noqa: B019
    def plain(self) -> StepResult:
        return result_of(self, self.graph())


@dataclass(frozen=True)
class StepResult:
    """Loss, gradients by parameter (None: it gets none), and what buffers hold afterwards."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]


def result_of(step: Step, graph: Graph) -> StepResult:
    """The result of one forward and backward of the graph, in this process."""
    model = step.fresh()
    values = {
        k: t.detach().clone().requires_grad_(t.requires_grad) for k, t in initial_values(model, graph).items()
    }
    loss = rebuild(graph, values)(step.inputs, step.targets)
    loss.backward()
    gradients = {k: t.grad for k, t in values.items() if t.requires_grad}
    there: dict[str, Tensor] = {}
    for k, grad in gradients.items():
        if grad is not None:
            name = graph.initializers[k].held_as
            there[name] = there[name] + grad if name in there else grad
    buffers = {k: t for k, t in values.items() if not t.requires_grad}
    return StepResult(
        loss.detach(),
        dict.fromkeys(graph.initializers[k].whole.name for k in gradients)
        | whole_tensors(there, graph.regions),
        whole_tensors(buffers, graph.regions),
    )


def assert_same_step(step: Step, graph: Graph) -> None:
    """The same loss, gradients and buffers as the captured graph's, to rounding."""
    ours, plain = result_of(step, graph), step.plain()
    assert abs(ours.loss - plain.loss) <= ROUNDING * abs(plain.loss)
    assert ours.gradients.keys() == plain.gradients.keys()
    scale = max(float(grad.abs().max()) for grad in plain.gradients.values() if grad is not None)
    for k, wanted in plain.gradients.items():
        grad = ours.gradients[k]
        assert (grad is None) == (wanted is None), k
        if grad is not None and wanted is not None:
            # Some are zero but for rounding, as that of a bias before a BatchNorm.
            assert float((grad - wanted).abs().max()) <= ROUNDING * scale, k
    for k, buffer in plain.buffers.items():
        torch.testing.assert_close(ours.buffers[k], buffer, rtol=ROUNDING, atol=0.0)


def _steps() -> dict[str, Step]:
    generator = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(8, *shape, generator=generator, dtype=torch.float64)

    classes = torch.randint(0, 5, (8,), generator=generator)
    tokens = torch.randint(0, 11, (8, 5), generator=generator)
    some = tokens.roll(-1, 1).masked_fill(torch.rand(8, 5, generator=generator) < 0.3, -100)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    mlp = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 5))
    return {
        "mlp": Step(lambda: _again(mlp), nn.CrossEntropyLoss(), numbers(6), classes),
        "grouped": Step(Grouped, smooth, numbers(4, 4, 4), classes),
        "transformer": Step(Transformer, nn.CrossEntropyLoss(), tokens, some),
        "recurrent": Step(Recurrent, nn.CrossEntropyLoss(reduction="sum"), numbers(5, 6), classes),
        "products": Step(Products, nn.CrossEntropyLoss(), numbers(6), classes),
        "scalars": Step(Scalars, nn.MSELoss(), numbers(6), numbers(3)),
    }


def _again(model: nn.Sequential) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return model


STEPS = _steps()


def split_operator(
    graph: Graph, node: str, axis: int | str, parts: int | Sequence[int], blocks: int = 1
) -> Graph:
    """The graph with a node in parts of these sizes, or in so many of about the same."""
    if isinstance(parts, int):
        block = split_axes(graph, node).get(axis, 0) // max(blocks, 1)
        parts = [block // parts + (i < block % parts) for i in range(parts)]
    return also(graph, Split(node, axis, tuple(parts), blocks))
