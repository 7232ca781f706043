"""Batches of any structure as flat tensors and back, and what is cut into micro-batches."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph.batches.batch import Batch, per_sample, shared
from netsplit.graph.batches.tree import flatten

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Sample:
    x: Any
    y: Any = None
    tags: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    scale: float = 1.0


class Cache:
    """Like the key-value caches of language models: an object with tensors in lists."""

    def __init__(self, keys: Any, seen: int) -> None:
        self.keys = keys
        self.seen = seen


_STATIC = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3)
_LEAVES = _STATIC | st.integers(0, 3).map(lambda n: torch.full((n, 2), float(n)))
VALUES = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3).map(UserDict)
        | st.builds(Pair, inner, inner)
        | st.builds(Sample, inner, inner, st.lists(inner, max_size=2))
        | st.builds(Frozen, inner)
        | st.builds(Cache, inner, st.integers(0, 3))
    ),
    max_leaves=8,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a is b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Frozen):
        return same(a.x, b.x) and same(a.scale, b.scale)
    if hasattr(a, "__dict__"):
        return same(vars(a), vars(b))
    return bool(a == b) or (a != a and b != b)


@settings(deadline=None, max_examples=150)
@given(value=VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    tensors, tree, _ = flatten(value)
    assert tree.count == len(tensors)
    assert all(isinstance(t, Tensor) for t in tensors)
    again = tree.build(tensors)
    assert same(value, again)
    other, tree_of_it, _ = flatten(again)
    assert len(other) == len(tensors)
    assert all(a is b for a, b in zip(other, tensors, strict=True))
    assert tree_of_it.count == tree.count


@pytest.mark.parametrize(
    ("one", "two"),
    [(1, True), (1, 1.0), (0.0, -0.0), ((1,), [1]), ({"a": 1}, {"b": 1}), (None, 0), ("1", 1)],
)
def test_structures_tell_values_that_are_no_tensors_apart(one: Any, two: Any) -> None:
    x = torch.ones(2)
    assert flatten((x, one))[1].key != flatten((x, two))[1].key
    assert flatten((x, one))[1].key == flatten((x, one))[1].key


def test_a_tensor_in_several_places_is_one_tensor_where_that_is_asked() -> None:
    x = torch.ones(1)
    tensors, tree, _ = flatten({"a": x, "b": [x]}, merge=True)
    assert len(tensors) == 1
    y = torch.zeros(1)
    assert tree.build([y]) == {"a": y, "b": [y]}


def test_what_contains_itself_or_cannot_be_compared_is_refused() -> None:
    value: list[Any] = [torch.ones(1)]
    value.append(value)
    with pytest.raises(NetSplitError, match="contains itself"):
        flatten(value)
    with pytest.raises(NetSplitError, match=r"numpy.ndarray.*as tensors"):
        _ = flatten([torch.ones(1), np.ones(2)])[1].key


def test_samples_are_the_first_dimension_of_the_first_tensor() -> None:
    x, ids, table, scale = torch.ones(6, 2), torch.arange(6), torch.ones(9, 2), torch.tensor(2.0)
    batch = Batch.of({"n": 3, "scale": scale, "x": x, "table": table}, ids)
    assert (batch.samples, batch.dims) == (6, (None, 0, None, 0))
    part = batch.rows(4, 9)
    assert part.samples == 2
    assert [tuple(t.shape) for t in part.tensors] == [(), (2, 2), (9, 2), (2,)]
    inputs, targets = part.given(part.tensors)
    assert inputs["n"] == 3
    assert inputs["table"] is table
    assert torch.equal(targets, torch.tensor([4, 5]))


def test_marks_say_otherwise() -> None:
    x, weights, states = torch.ones(6, 2), torch.ones(6), torch.ones(3, 6, 4)
    batch = Batch.of((x, shared(weights), per_sample(states, 1)), torch.ones(6))
    assert batch.dims == (0, None, 1, 0)
    assert batch.rows(0, 2).tensors[2].shape == (3, 2, 4)
    again = Batch.of((x, weights, states), torch.ones(6), batch.dims)
    assert again.dims == batch.dims
    assert again.key == batch.key
    first = Batch.of(per_sample(states, -2), shared(torch.ones(4)))
    assert (first.samples, first.dims) == (6, (1, None))
    with pytest.raises(ConfigError, match="no dimension 2"):
        per_sample(x, 2)


def test_the_key_is_of_all_but_samples_and_values() -> None:
    def key(*shape: int, dtype: torch.dtype = torch.float32, n: int = 1) -> Any:
        return Batch.of({"x": torch.zeros(shape, dtype=dtype), "n": n}).key

    assert key(4, 7) == key(2, 7)
    assert len({key(4, 7), key(4, 8), key(4, 7, 1), key(4, 7, dtype=torch.int64), key(4, 7, n=2)}) == 5
    hash(key(4, 7))


def test_the_key_of_an_object_is_what_it_holds() -> None:
    class Settings:
        def __init__(self, scale: float) -> None:
            self.scale = scale

    x, settings = torch.randn(4, 6), Settings(1.0)
    first = Batch.of((x, settings)).key
    assert first == Batch.of((x, Settings(1.0))).key
    settings.scale = 2.0
    assert first != Batch.of((x, settings)).key
    with pytest.raises(NetSplitError, match="ndarray"):
        _ = Batch.of((x, Settings(np.ones(2)))).key  # type: ignore[arg-type]


def test_a_batch_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ConfigError, match="inputs have none"):
        Batch.of({"text": ["a", "b"]}, torch.ones(2))
    with pytest.raises(ConfigError, match=r"of \[4, 6\] samples"):
        Batch.of((torch.ones(6), torch.ones(4)), None, (0, 0))
    with pytest.raises(ConfigError, match="layout"):
        Batch.of(torch.eye(3).to_sparse())
