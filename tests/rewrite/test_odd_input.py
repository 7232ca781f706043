"""What no rewrite can be made of is refused in a sentence that says what was given and what is allowed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError, RewriteError
from netsplit.graph.files import dumps
from netsplit.partition.methods.os_dpos.os_dpos import OsDpos
from netsplit.rewrite import (
    CopyWeights,
    ReadWeights,
    Split,
    along_samples,
    also,
    applied,
    columns_and_rows,
    copies_after,
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
from tests.cover import covering
from tests.examples import tried
from tests.rewrite.models import STEPS
from tests.runtime.equivalence.running import captured

GRAPH = STEPS["mlp"].graph()  # of eight samples; "linear" is 6 wide, and makes 12

PROPORTIONS: list[Any] = [
    (), (1.0,), (0, 1), (-1, 2), (math.nan, 1.0), (math.inf, 1.0), ("a", "b"), "12", None, 2.5, True,
    (True, 1), b"linear", bytearray(b"ab"), (GRAPH, 1),
]  # fmt: skip


@covering(function=[along_samples, replicate], parts=[*PROPORTIONS, 0, 1, -2])
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


@pytest.mark.parametrize("parts", [None, "ab", (0, 0), (), (-1.0, 2.0)])
def test_what_can_be_cut_is_cut_by_proportions_alone(parts: Any) -> None:
    with pytest.raises(RewriteError):
        columns_and_rows(GRAPH)[0].splits(parts)


@pytest.mark.parametrize("chosen", [None, "ab", "", [1], GRAPH, columns_and_rows(GRAPH)[0]])
def test_what_are_no_cut_products(chosen: Any) -> None:
    with pytest.raises(RewriteError, match=r"^chosen is .*: give some of what columns_and_rows answers"):
        splits_of(GRAPH, chosen, (1.0, 1.0))


def test_cut_products_of_another_graph() -> None:
    words = r"^chosen cuts \['.*'\], which columns_and_rows does not answer of this graph: give "
    with pytest.raises(RewriteError, match=words):
        splits_of(captured("attention", 4), columns_and_rows(GRAPH), (1.0, 1.0))


def test_more_parts_than_any_of_the_cut_products_has() -> None:
    chosen = columns_and_rows(GRAPH)
    assert splits_of(GRAPH, chosen, (1.0,) * 12)
    for parts in ((1.0,) * 13, (1.0,) * 40):
        words = rf" {len(parts)} of them, but nothing that was chosen can be cut in more than 12: give"
        with pytest.raises(RewriteError, match=words):
            splits_of(GRAPH, chosen, parts)
    assert splits_of(GRAPH, (), (1.0,) * 13) == ()


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
        (("linear", True, 2), "^axis is True"),
        (("linear", 1, True), "^parts is True"),
        (("linear", 1, b"\x06\x06"), "^parts is b"),
        (("linear", 1, 2, True), "^blocks is True"),
    ],
)
def test_what_no_operator_is_split_by(arguments: Any, words: str) -> None:
    with pytest.raises(RewriteError, match=words.replace("10{12}", str(10**12))):
        split_operator(GRAPH, *arguments)


@pytest.mark.parametrize("make", [applied, lambda graph, rewrites: also(graph, *rewrites)])
def test_a_split_numbers_dimensions_from_0(make: Callable[..., Any]) -> None:
    """Or one cut would have two names, of which one is told as another than the other."""
    words = r"^'linear' .* cannot be split along -1: a Split numbers dimensions from 0: give 1\.$"
    with pytest.raises(RewriteError, match=words):
        make(GRAPH, (Split("linear", -1, (6, 6)),))
    assert dumps(split_operator(GRAPH, "linear", -1, 2)) == dumps(split_operator(GRAPH, "linear", 1, 2))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Split(cast(str, None), 1, (6, 6)), "^node is None"),
        (lambda: Split("linear", cast(int, 1.5), (6, 6)), "^axis is 1.5"),
        (lambda: Split("linear", 1, cast(Any, 4)), "^sizes is 4: give whole numbers"),
        (lambda: Split("linear", 1, cast(Any, (6.0, 6.0))), "^sizes is "),
        (lambda: Split("linear", 1, cast(Any, "")), "^sizes is ''"),
        (lambda: Split("linear", 1, cast(Any, b"66")), "^sizes is b'66'"),
        (lambda: Split("linear", True, (6, 6)), "^axis is True"),
        (lambda: Split("linear", 1, (6, 6), 0), "^blocks is 0"),
        (lambda: CopyWeights("linear", True), "^copy is True"),
        (lambda: ReadWeights(cast(str, 3)), "^node is 3"),
        (lambda: CopyWeights("linear", cast(int, "a")), "^copy is 'a'"),
        (lambda: CopyWeights("linear", -1), "^copy is -1: give a whole number, and number copies from 0"),
        (lambda: rewrite_from({"kind": "copy", "node": "linear", "copy": -1}), "^copy is -1"),
        (lambda: copy_weights(GRAPH, "linear", cast(int, 1.5)), "^copy is 1.5"),
        (lambda: copy_weights(GRAPH, cast(str, None), 1), "^node is None"),
        (lambda: read_weights(GRAPH, cast(str, None)), "^node is None"),
        (lambda: split_axes(GRAPH, cast(str, [])), r"^node is \[\]"),
        (lambda: split_axes(GRAPH, cast(str, {})), r"^node is {}"),
    ],
)
def test_what_no_rewrite_has(made: Callable[[], Any], words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        made()


@pytest.mark.parametrize("rewrites", [None, "ab", "", Split("linear", 1, (6, 6)), [{"kind": "split"}]])
def test_what_are_no_rewrites(rewrites: Any) -> None:
    with pytest.raises(RewriteError, match=r"^rewrites is .*: give Split, ReadWeights and CopyWeights"):
        applied(GRAPH, rewrites)


@pytest.mark.parametrize("splits", [None, 3, "ab", "", Split("linear", 1, (6, 6)), (ReadWeights("linear"),)])
def test_what_are_no_splits(splits: Any) -> None:
    with pytest.raises(RewriteError, match=r"^splits is .*: give what along_samples answers, or Split"):
        copies_after(GRAPH, splits)


@pytest.mark.parametrize("like", [0, "x", (), STEPS["mlp"].fresh()])
def test_what_no_graph_is_like(like: Any) -> None:
    with pytest.raises(RewriteError, match=r"^like is a \w+: give a graph"):
        applied(GRAPH, (Split("linear", 1, (6, 6)),), like)


@pytest.mark.parametrize(
    "scaled", [None, 1, "yes", np.array(["samples"]), np.array([True]), np.array([1, 2])]
)
def test_what_is_neither_scaled_nor_not(scaled: Any) -> None:
    with pytest.raises(RewriteError, match=r"^scaled is .*: give True, False or 'samples'\.$"):
        applied(GRAPH, (Split("linear", 1, (6, 6)),), scaled=scaled)


RECORDED = Split("linear", 1, (6, 6)).to_dict()
COPIED = CopyWeights("linear", 1).to_dict()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (COPIED | {"copy": 1.7}, "^copy is 1.7"),
        (COPIED | {"copy": True}, "^copy is True"),
        (COPIED | {"node": None}, "^node is None"),
        (RECORDED | {"sizes": "66"}, "^sizes is '66'"),
        (RECORDED | {"sizes": [6.7, 6]}, r"^sizes is \[6.7, 6\]"),
        (RECORDED | {"axis": 1.0}, "^axis is 1.0"),
        (RECORDED | {"axis": None}, "^axis is None"),
        (RECORDED | {"axis": True}, "^axis is True"),
        (RECORDED | {"blocks": "1"}, "^blocks is '1'"),
        (COPIED | {"sizes": [6, 6]}, "has one too many: .*, and a copy has kind, node, copy"),
        ({"node": "linear"}, "^None is no kind of rewrite"),
        ({"kind": ["copy"], "node": "linear"}, "is no kind of rewrite"),
        (["copy"], r"^a rewrite is \['copy'\]: give what its to_dict answers"),
    ],
)
def test_what_was_written_is_not_changed_in_reading(values: Any, words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        rewrite_from(values)


WHOLE = [np.int64, np.int32, np.uint8]


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_numbers_of_other_kinds_are_ready_for_json(kind: Callable[[int], Any]) -> None:
    one, six = kind(1), kind(6)
    made = (Split("linear", one, (six, six), one), CopyWeights("linear", one))
    assert made == (Split("linear", 1, (6, 6)), CopyWeights("linear", 1))
    assert tuple(rewrite_from(json.loads(json.dumps(each.to_dict()))) for each in made) == made
    for own, plain in (
        (split_operator(GRAPH, "linear", one, kind(2), kind(2)), split_operator(GRAPH, "linear", 1, 2, 2)),
        (split_operator(GRAPH, "linear", one, (six, six)), split_operator(GRAPH, "linear", 1, (6, 6))),
        (copy_weights(GRAPH, "linear", one), copy_weights(GRAPH, "linear", 1)),
    ):
        assert dumps(own) == dumps(plain)


def test_a_dimension_from_the_end_of_another_kind_of_number() -> None:
    axes = (1, -1, cast(int, np.int64(-1)))
    last = [dumps(split_operator(GRAPH, "linear", axis, 2)) for axis in axes]
    assert last[0] == last[1] == last[2]


@pytest.mark.parametrize(
    "function",
    [
        lambda given: split_axes(GRAPH, given),
        lambda given: split_operator(GRAPH, "linear", given, 2),
        lambda given: split_operator(GRAPH, "linear", 1, given),
        lambda given: along_samples(GRAPH, given),
        lambda given: copies_after(GRAPH, given),
        lambda given: applied(GRAPH, given),
        lambda given: splits_of(GRAPH, given, (1.0, 1.0)),
        lambda given: rewrite_from(given),
    ],
)
def test_a_sentence_shows_the_beginning_of_what_is_long(function: Callable[[Any], Any]) -> None:
    for given_ in (GRAPH, columns_and_rows(GRAPH)[0], np.zeros((9, 9)), STEPS["mlp"].fresh()):
        with pytest.raises(RewriteError) as raised:
            function(given_)
        assert len(str(raised.value)) < 200
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("sizes", [(), (12,), (13, -1), (1, -1), (12, 0)])
def test_sizes_of_no_parts(sizes: tuple[int, ...]) -> None:
    with pytest.raises(RewriteError, match=r"cannot be split along 1"):
        applied(GRAPH, (Split("linear", 1, sizes),))


@settings(max_examples=tried(40), deadline=None)
@given(sizes=st.lists(st.integers(-2, 14), max_size=4), axis=st.sampled_from([0, 1, -1, "input.1"]))
def test_copies_are_of_sizes_that_add_up(sizes: list[int], axis: int | str) -> None:
    splits = (Split("linear", axis, tuple(sizes)),)
    whole = split_axes(GRAPH, "linear")[1 if axis == -1 else axis]
    if len(sizes) > 1 and min(sizes) > 0 and sum(sizes) == whole:
        assert {each.copy for each in copies_after(GRAPH, splits)} == {*range(1, len(sizes))}
        return
    with pytest.raises(RewriteError, match=r"cannot be split along .* two parts or more, none of them empty"):
        copies_after(GRAPH, splits)


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


@pytest.mark.parametrize("seconds", ["a", None, 0, -1.0, math.nan, True, pytest.param(10**5000, id="long")])
def test_a_limit_that_is_no_time(seconds: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^os_dpos\.time_limit_s is .*: give more than 0 seconds \(inf for no limit\)\.$"
    ):
        OsDpos(time_limit_s=seconds)


@pytest.mark.parametrize("value", [np.array(["whole", "fifo"]), np.array(["fifo"]), ["whole"], None, "both"])
@pytest.mark.parametrize("key", ["start", "order"])
def test_a_choice_that_is_none(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^os_dpos\.{key} is .*: give (data_parallel|priority) or \w+\.$"):
        OsDpos(**{key: value})


@covering(key=["gain", "search_s", "window", "every", "horizon"], value=["a", math.nan, -1, True])
def test_what_says_nothing_of_adapting(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^adapt\.{key} is .*: give "):
        Adapt(**{key: value})
