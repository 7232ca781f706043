"""What no rewrite can be made of is refused in a sentence that says what was given and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.errors import ConfigError, RewriteError
from netsplit.rewrite import (
    CopyWeights,
    Split,
    along_samples,
    replicate,
    rewrite_from,
    split_operator,
)
from netsplit.rewrite.records import proportions_of
from netsplit.training.adapt.adaptation import Adapt
from tests.cover import covering
from tests.rewrite.models import STEPS

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


@covering(key=["gain", "search_s", "window", "every", "horizon"], value=["a", math.nan, -1, True])
def test_what_says_nothing_of_adapting(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^adapt\.{key} is .*: give "):
        Adapt(**{key: value})
