"""Products by columns and rows: the same step, heads whole, nothing put together in between."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from netsplit.graph import Graph, capture
from netsplit.rewrite import (
    along_samples,
    applied,
    columns_and_rows,
    splits_of,
)
from netsplit.rewrite.records import proportioned
from tests.cover import covering
from tests.rewrite.models import STEPS, assert_same_step
from tests.runtime.equivalence.running import captured


@given(count=st.integers(1, 200), parts=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6))
def test_proportions_add_up_and_none_is_empty(count: int, parts: list[float]) -> None:
    sizes = proportioned(count, parts)
    if count < len(parts):
        assert sizes == ()
        return
    assert sum(sizes) == count
    assert min(sizes) >= 1
    ranked = [size for _, size in sorted(zip(parts, sizes, strict=True))]
    assert all(a <= b + 1 for a, b in pairwise(ranked))
    if min(parts) * count >= sum(parts):  # each has room for one by right: then none is off by one
        exact = [count * part / sum(parts) for part in parts]
        assert all(abs(size - each) < 1 + 1e-6 for size, each in zip(sizes, exact, strict=True))


@covering(name=STEPS, parts=[(1.0, 1.0), (3.0, 1.0), (1.0, 1.0, 1.0)])
def test_products_by_columns_and_rows_are_the_same_step(name: str, parts: tuple[float, ...]) -> None:
    step = STEPS[name]
    graph = step.graph()
    cuts = columns_and_rows(graph)
    for chosen in (cuts, [each for each in cuts if each.chained]):
        splits = splits_of(graph, chosen, parts)
        assert splits or not chosen or len(parts) > 2  # two heads are no three
        assert_same_step(step, applied(graph, splits))


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_unequal_parts_of_the_samples_are_the_same_step(name: str) -> None:
    step = STEPS[name]
    splits = along_samples(step.graph(), (2.0, 1.0))
    assert {sum(split.sizes) for split in splits} >= {8}
    assert all(split.sizes[0] > split.sizes[1] for split in splits)
    assert_same_step(step, applied(step.graph(), splits))


def test_attention_is_cut_between_its_heads() -> None:
    """Two heads of four: queries, keys and values of one weight are three blocks."""
    graph = captured("attention", 4)
    heads = next(each for each in columns_and_rows(graph) if "scaled_dot_product_attention" in each.cuts)
    assert heads.unit == 4
    splits = {split.node: split for split in heads.splits((3.0, 1.0))}
    assert splits["scaled_dot_product_attention"].sizes == (1, 1)
    assert (splits["linear"].sizes, splits["linear"].blocks) == ((4, 4), 3)
    assert splits["linear_1"].axis == "input.2"
    assert heads.splits((1.0, 1.0, 1.0)) == ()


def captured_mlp(model: nn.Module) -> Graph:
    return capture(model, nn.CrossEntropyLoss(), (torch.randn(6, 8), torch.randint(4, (6,))))


def test_nothing_is_put_together_between_columns_and_rows() -> None:
    graph = captured_mlp(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)))
    (chain,) = columns_and_rows(graph)
    assert chain.weight_bytes == 4 * (8 * 32 + 32 * 4)
    cut = applied(graph, chain.splits((1.0, 1.0)))
    assert [node.kind for node in cut if ":" not in node.name] == ["add", "cross_entropy_loss"]
    assert not any(node.kind == "cat" for node in cut)
