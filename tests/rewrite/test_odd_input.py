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
    applied,
    replicate,
    rewrite_from,
)
from netsplit.rewrite.records import proportions_of
from netsplit.training.adapt.adaptation import Adapt
from tests.cover import covering
from tests.rewrite.models import STEPS, split_operator

GRAPH = STEPS["mlp"].graph()  # of eight samples; "linear" is 6 wide, and makes 12

PROPORTIONS: list[Any] = [
    (), (1.0,), (0, 1), (-1, 2), (math.nan, 1.0), (math.inf, 1.0),
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
        ((None, 1, 2), "no operator 'None': name one"),
        (("linear", None, 2), "give an axis"),
        (("linear", 1, (9, 2)), "that add up"),
        (("linear", 1, 2, 0), "the number of blocks"),
    ],
)
def test_what_no_operator_is_split_by(arguments: Any, words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        split_operator(GRAPH, *arguments)


RECORDED = Split("linear", 1, (6, 6)).to_dict()
COPIED = CopyWeights("linear", 1).to_dict()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (RECORDED | {"sizes": "66"}, "^a rewrite is "),
        (RECORDED | {"sizes": [6.7, 6]}, "^a rewrite is "),
        (COPIED | {"sizes": [6, 6]}, "^a rewrite is "),
        ({"node": "linear"}, "^None is not a kind of rewrite"),
    ],
)
def test_what_was_written_is_not_changed_in_reading(values: Any, words: str) -> None:
    with pytest.raises(RewriteError, match=words):
        rewrite_from(values)


def test_a_copy_has_a_whole_number() -> None:
    with pytest.raises(RewriteError, match=r"give the number of a copy"):
        applied(GRAPH, (rewrite_from(COPIED | {"copy": 1.7}),))


@covering(key=["gain", "search_s", "window", "every", "horizon"], value=["a", math.nan, -1, True])
def test_what_says_nothing_of_adapting(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^adapt\.{key} is .*: give "):
        Adapt(**{key: value})
