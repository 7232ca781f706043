"""What no rewrite can be made of is refused in a sentence that says what was given and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.errors import ConfigError, RewriteError
from netsplit.partition.methods.os_dpos import OsDpos
from netsplit.rewrite import (
    CopyWeights,
    ReadWeights,
    Split,
    along_samples,
    also,
    applied,
    columns_and_rows,
    copy_weights,
    read_weights,
    replicate,
    rewrite_from,
    split_axes,
    split_operator,
    splits_of,
)
from netsplit.rewrite.records import proportions_of
from netsplit.training.adapt.adaptation import Adapt
from tests.rewrite.models import STEPS

GRAPH = STEPS["mlp"].graph()  # of eight samples; "linear" is 6 wide, and makes 12

PROPORTIONS: list[Any] = [
    (), (1.0,), (0, 1), (-1, 2), (math.nan, 1.0), (math.inf, 1.0), ("a", "b"), "12", None, 2.5, True,
    (True, 1),
]  # fmt: skip


@pytest.mark.parametrize("parts", [*PROPORTIONS, 0, 1, -2])
@pytest.mark.parametrize("function", [along_samples, replicate])
def test_what_are_no_parts_of_a_batch(function: Callable[..., Any], parts: Any) -> None:
    with pytest.raises(RewriteError, match=r"^parts is .*: give two or more proportions .*, 2 or more\.$"):
        function(GRAPH, parts)


@pytest.mark.parametrize("parts", [9, 10**12, (1.0,) * 9])
@pytest.mark.parametrize("function", [along_samples, replicate])
def test_more_parts_than_samples(function: Callable[..., Any], parts: Any) -> None:
    with pytest.raises(RewriteError, match=r"^parts is .* a batch of the graph has 8 samples: give no more"):
        function(GRAPH, parts)


@given(parts=st.lists(st.one_of(st.floats(), st.integers(-2, 2)), max_size=4))
def test_proportions_are_two_or_more_numbers_above_zero(parts: list[float]) -> None:
    """Whatever is taken is finite in sums of it, too."""
    fine = len(parts) > 1 and all(0 < each < 1e300 for each in parts)
    if fine:
        assert proportions_of(parts) == tuple(parts)
    else:
        with pytest.raises(RewriteError, match=r"^parts is "):
            proportions_of(parts)


@pytest.mark.parametrize("chosen", [None, "ab", [1], columns_and_rows(GRAPH)[0]])
def test_what_are_no_cut_products(chosen: Any) -> None:
    with pytest.raises(RewriteError, match=r"^chosen is .*: give some of what columns_and_rows answers"):
        splits_of(GRAPH, chosen, (1.0, 1.0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, 1, 2), "^node is None: give the name"),
        ((["linear"], 1, 2), "^node is "),
        (("linear", None, 2), "^axis is None: give a dimension's number"),
        (("linear", 1.5, 2), "^axis is 1.5"),
        (("linear", [1], 2), "^axis is "),
        (("linear", 1, "ab"), "^parts is 'ab': give how many"),
        (("linear", 1, None), "^parts is None"),
        (("linear", 1, 2.5), "^parts is 2.5"),
        (("linear", 1, (6.9, 6.2)), "^parts is "),
        (("linear", 1, 10**12), "10{12} parts of 12: give two parts or more"),
        (("linear", 1, (9, 2)), "that add up"),
        (("linear", 1, 2, 0), "^blocks is 0: give a whole number of at least 1"),
        (("linear", 1, 2, "a"), "^blocks is 'a'"),
    ],
)
def test_what_no_operator_is_split_by(arguments: Any, words: str) -> None:
    with pytest.raises(RewriteError, match=words.replace("10{12}", str(10**12))):
        split_operator(GRAPH, *arguments)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Split(cast(str, None), 1, (6, 6)), "^node is None"),
        (lambda: Split("linear", cast(int, 1.5), (6, 6)), "^axis is 1.5"),
        (lambda: Split("linear", 1, cast(Any, 4)), "^sizes is 4: give whole numbers"),
        (lambda: Split("linear", 1, cast(Any, (6.0, 6.0))), "^sizes is "),
        (lambda: Split("linear", 1, (6, 6), 0), "^blocks is 0"),
        (lambda: ReadWeights(cast(str, 3)), "^node is 3"),
        (lambda: CopyWeights("linear", cast(int, "a")), "^copy is 'a'"),
        (lambda: CopyWeights("linear", -1), "^copy is -1: give a whole number, and number copies from 0"),
        (lambda: rewrite_from({"kind": "copy", "node": "linear", "copy": -1}), "^copy is -1"),
        (lambda: copy_weights(GRAPH, "linear", cast(int, 1.5)), "^copy is 1.5"),
        (lambda: copy_weights(GRAPH, cast(str, None), 1), "^node is None"),
        (lambda: read_weights(GRAPH, cast(str, None)), "^node is None"),
    ],
)
def test_what_no_rewrite_has(made: Callable[[], Any], words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        made()


@pytest.mark.parametrize("rewrites", [None, "ab", Split("linear", 1, (6, 6)), [{"kind": "split"}]])
def test_what_are_no_rewrites(rewrites: Any) -> None:
    with pytest.raises(RewriteError, match=r"^rewrites is .*: give Split, ReadWeights and CopyWeights"):
        applied(GRAPH, rewrites)


@pytest.mark.parametrize("sizes", [(), (12,), (13, -1), (1, -1), (12, 0)])
def test_sizes_of_no_parts(sizes: tuple[int, ...]) -> None:
    with pytest.raises(RewriteError, match=r"cannot be split along 1"):
        applied(GRAPH, (Split("linear", 1, sizes),))


@pytest.mark.parametrize("split", [Split("linear", 1, (3, 2)), Split("linear", 0, (3, 3))])
def test_sizes_of_another_graph_are_taken_where_that_is_said(split: Split) -> None:
    """What was done to a graph once, and is kept, is as right or wrong the next time."""
    words = r"cannot be split along [01]: sizes \[3, [23]\] of (8|12): .* that add up"
    for _ in range(2):
        with pytest.raises(RewriteError, match=words):
            applied(GRAPH, (split,))
        assert "linear:1" in applied(GRAPH, (split,), scaled=True).nodes
    with pytest.raises(RewriteError, match=words):
        also(GRAPH, split)


@pytest.mark.parametrize(
    "function",
    [
        columns_and_rows,
        lambda graph: along_samples(graph, 2),
        lambda graph: replicate(graph, 2),
        lambda graph: splits_of(graph, (), (1.0, 1.0)),
        lambda graph: applied(graph, ()),
        lambda graph: split_operator(graph, "linear", 1, 2),
        lambda graph: split_axes(graph, "linear"),
        lambda graph: copy_weights(graph, "linear", 1),
        lambda graph: read_weights(graph, "linear"),
    ],
)
def test_what_is_no_graph(function: Callable[[Any], Any]) -> None:
    with pytest.raises(RewriteError, match=r"^what is to be rewritten is a Sequential: give a graph"):
        function(STEPS["mlp"].fresh())


@pytest.mark.parametrize("seconds", ["a", None, 0, -1.0, math.nan, True])
def test_a_limit_that_is_no_time(seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"^os_dpos\.time_limit_s is .*: give more than 0 seconds\.$"):
        OsDpos(time_limit_s=seconds)


@pytest.mark.parametrize("value", ["a", math.nan, -1, True])
@pytest.mark.parametrize("key", ["gain", "search_s", "window", "every", "horizon"])
def test_what_says_nothing_of_adapting(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^adapt\.{key} is .*: give "):
        Adapt(**{key: value})
