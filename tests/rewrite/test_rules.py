"""Operators that need a rule of their own, along all of their axes; and those that have no axis."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import RewriteError
from netsplit.graph import capture
from netsplit.rewrite import ReadWeights, applied, split_axes
from tests.rewrite.models import STEPS, Step, assert_same_step, split_operator


class SharedKeys(nn.Module):
    """Three heads of queries for each of keys and values: by groups, repeated, and one for all."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(6, 12)
        self.keys = nn.Linear(6, 4)
        self.mask = nn.Parameter(torch.linspace(-1, 1, 96).view(6, 4, 4))
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) * torch.linspace(0.5, 2, 4).view(4, 1)
        query = self.queries(x).view(len(x), 4, 6, 2).movedim(2, 1)
        key = self.keys(x).view(len(x), 4, 2, 2).swapaxes(1, 2)
        grouped = F.scaled_dot_product_attention(query, key, key, attn_mask=self.mask, enable_gqa=True)
        again = key.repeat_interleave(3, 1)
        repeated = F.scaled_dot_product_attention(query, again, again, is_causal=True)
        one = F.scaled_dot_product_attention(query, key[:, :1], key[:, :1], enable_gqa=True)
        return self.head((grouped + repeated * one).transpose(1, 2).flatten(2)).mean(1)


class CellByCell(nn.Module):
    """One step of each recurrence."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.LSTMCell(6, 4)
        self.gated = nn.GRUCell(4, 4)
        self.plain = nn.RNNCell(4, 5, nonlinearity="relu", bias=False)

    def forward(self, x: Tensor) -> Tensor:
        state, memory = self.long(x)
        return self.plain(self.gated(memory, state))


class Letters(nn.Module):
    """Sums over letters that both have, that one has, and none; one that broadcasts; a diagonal."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 18).view(6, 3))
        self.u = nn.Parameter(torch.linspace(0, 2, 15).view(3, 5))
        self.one = nn.Parameter(torch.tensor([[0.5], [2.0]]))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("bi, ij, jk -> bk", x, self.w, self.u)
        z = torch.einsum("bk,ak", y, self.one[:, :1]).sum(0).unsqueeze(1)
        return y * z + torch.einsum("ii->i", y[:5] @ y[:5].t()) + torch.einsum("bk,ck->bc", y, y[:5])


class Elsewhere(nn.Module):
    """Elements from other places, and what sorts, repeats, gates or shuffles them."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(6, 24)
        self.slope = nn.PReLU(3)
        self.places = nn.Buffer(torch.tensor([[2, 0, 1], [1, 1, 0]]).repeat(4, 1))
        self.narrow = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        pixels = F.pixel_shuffle(self.widen(x).view(len(x), 12, 2, 1), 2)
        y = self.slope(pixels).flatten(2).flip(2).roll(1, 1)
        y = F.glu(y.index_select(1, torch.tensor([1, 0, 2])), 2)
        y = y.gather(1, self.places.unsqueeze(2).expand(len(x), 3, 4)).logcumsumexp(1)
        y = y.sort(2)[0] / y.std(1, keepdim=True) + y.topk(1, 2)[0].repeat_interleave(4, 2)
        return self.narrow(y.movedim(1, 2).swapaxes(1, 2).flatten(1)[:, :6])


class Literals(nn.Module):
    """Tensors of one number, of a size, and of a size with another tensor's dtype, or like one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        n, dtype = len(x), x.dtype
        made = torch.zeros(n, 6, dtype=dtype) + torch.ones(n, 1, dtype=dtype) * torch.full(
            (6,), 0.5, dtype=dtype
        )
        made = made + x.new_zeros(n, 6) + x.new_ones(1, 6) + self.layer.weight.new_full((n, 6), 2.0)
        made = made * torch.ones_like(x) + torch.zeros_like(x) + torch.full_like(x, 3.0)
        return self.layer(x * made)


class Triangles(nn.Module):
    """Matrices, alone and several: the batch's own pairs, and one for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.tril(x @ x.t(), -1) + torch.triu(x @ x.t(), 2)
        each = x.view(len(x), 2, 3, 1)
        each = torch.triu(each @ each.mT, 1) + torch.tril(each @ each.mT)
        several = torch.tril((each @ each.mT).flatten(1, 2)) + torch.triu(each.flatten(1, 2) @ each[:, 0], 1)
        return self.layer(pairs @ x) + several.sum((1, 2)).unsqueeze(1)


def _weighted(said: Tensor, target: Tensor) -> Tensor:
    """Losses of pairs with weights that broadcast, of each pair or of each column."""
    target = F.one_hot(target, 5).to(said.dtype)
    own, column = torch.linspace(1, 2, len(said)).view(-1, 1), torch.linspace(0.5, 1, 5)
    pairs = F.binary_cross_entropy_with_logits(said, target, weight=own, pos_weight=column)
    divergence = F.kl_div(F.log_softmax(said, 1), target, reduction="sum")
    return pairs + F.binary_cross_entropy(said.sigmoid(), target, weight=column) + divergence


class Seldom(nn.Module):
    """All dimensions reversed, addends of a linear that broadcast, keys of other heads than values."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = nn.Linear(6, 64)
        self.one, self.rows = (
            nn.Parameter(torch.tensor([0.5])),
            nn.Parameter(torch.linspace(-1, 1, 8)[:, None]),
        )
        self.narrow = nn.Parameter(torch.linspace(-1, 1, 320).view(5, 64))

    def forward(self, x: Tensor) -> Tensor:
        cube = self.widen(x).view(8, 8, 8)
        turned = cube * torch.ops.aten.numpy_T(cube)
        heads = turned.reshape(8, 8, 2, 4)
        seen = F.scaled_dot_product_attention(heads, heads, heads[:, :4], enable_gqa=True)
        return F.linear(seen.flatten(1), self.narrow, self.one) + F.linear(
            seen.flatten(1), self.narrow, self.rows
        )


MLP = STEPS["mlp"]
OF_THEIR_OWN = {
    "shared_keys": replace(MLP, build=SharedKeys),
    "cells": replace(MLP, build=CellByCell),
    "letters": replace(MLP, build=Letters),
    "elsewhere": replace(MLP, build=Elsewhere),
    "literals": replace(MLP, build=Literals),
    "seldom": replace(MLP, build=Seldom),
    "triangles": replace(MLP, build=Triangles),
    "weighted": replace(MLP, loss=_weighted),
}


KINDS = {
    "shared_keys": {"scaled_dot_product_attention", "movedim", "swapaxes", "repeat_interleave"},
    "cells": {"lstm_cell", "gru_cell", "rnn_relu_cell"},
    "letters": {"einsum"},
    "elsewhere": {
        "pixel_shuffle", "prelu", "flip", "roll", "glu", "index_select", "gather", "logcumsumexp", "sort",
        "topk", "std", "repeat_interleave",
    },
    "literals": {
        "zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "ones_like", "zeros_like", "full_like",
    },
    "triangles": {"tril", "triu"},
    "seldom": {"numpy_T", "scaled_dot_product_attention", "linear"},
    "weighted": {"binary_cross_entropy_with_logits", "kl_div", "binary_cross_entropy"},
}  # fmt: skip


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_every_axis(name: str) -> None:
    """In two uneven parts."""
    step, cut = OF_THEIR_OWN[name], set()
    graph = step.graph()
    for node in graph:
        axes = split_axes(graph, node.name) if node.kind in KINDS[name] else {}
        for axis, size in axes.items():
            assert_same_step(step, split_operator(graph, node.name, axis, (1, size - 1)))
            cut.add(node.kind)
    assert cut == KINDS[name]


def test_heads_that_share_keys_go_together() -> None:
    graph = OF_THEIR_OWN["shared_keys"].graph()
    first = next(node.name for node in graph if node.kind == "scaled_dot_product_attention")
    assert split_axes(graph, first) == {0: 8, 2: 4, 3: 2, "groups": 2}
    with pytest.raises(RewriteError, match="'groups' of them"):
        split_operator(graph, first, 1, 2)


class Flat(nn.Module):
    """Tensors without a dimension, and without an element."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        nothing = x[:, :0].reshape(len(x), 0, 3).flatten(0, 1).sum()
        return self.layer(x) * self.scale.sum(0) * self.scale.softmax(0).cumsum(0) + nothing


def test_what_has_no_dimension_or_element_is_not_cut() -> None:
    """Nor does it stop others from being cut."""
    step: Step = replace(MLP, build=Flat)
    graph = step.graph()
    for node in graph:
        for axis in split_axes(graph, node.name):
            assert_same_step(step, split_operator(graph, node.name, axis, 2))
    assert split_axes(graph, "reshape") == split_axes(graph, "softmax") == {}


def test_an_operator_without_a_rule_is_refused_as_such() -> None:
    model = nn.Bilinear(3, 3, 5)

    def loss(said: Tensor, target: Tensor) -> Tensor:
        return F.multi_margin_loss(said, target)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = model

        def forward(self, x: Tensor) -> Tensor:
            return self.both(x, x)

    graph = capture(Both(), loss, (torch.randn(4, 3), torch.arange(4)))
    with pytest.raises(RewriteError, match="no rule"):
        split_operator(graph, "bilinear", 0, 2)


def test_what_hands_a_parameter_on_reads_no_other() -> None:
    """It would read itself."""
    graph = split_operator(MLP.graph(), "linear", 0, 2)
    assert "0.weight:read" in graph.nodes
    with pytest.raises(RewriteError, match="moves tensors for parts"):
        applied(graph, (*graph.rewrites, ReadWeights("0.weight:read")))
