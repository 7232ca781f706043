"""Agreement with published throughputs: counted by hand, and by definition."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.experiment.agreement import NEAR, Agreement, agreement_table, best_constant, kendall_tau

AMOEBANET = {"pesto": 30.17, "m_topo": 36.46, "m_etf": 19.59, "m_sct": 28.82, "netsplit": 41.83}
figures = st.lists(st.floats(1.0, 1e3), min_size=1, max_size=7)


@pytest.mark.parametrize(
    ("ours", "theirs", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 4, 3], [1, 2, 3, 4], 4 / 6),  # five pairs in order, one not
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5),  # a tie: two of its pairs and three of the other side are ordered
        ([1.001, 1.002, 2.0], [1, 2, 3], 2 / 6**0.5),  # equal in the digits shown
        ([5, 5, 5], [1, 2, 3], None),
    ],
)
def test_kendalls_tau_by_hand(ours: list[float], theirs: list[float], tau: float | None) -> None:
    assert kendall_tau(ours, theirs) == (None if tau is None else pytest.approx(tau))


@given(st.permutations([10.0, 20.0, 30.0, 40.0, 50.0]))
def test_without_ties_tau_is_the_fraction_of_pairs_in_order_less_that_of_the_others(
    ours: list[float],
) -> None:
    theirs = sorted(ours)
    pairs = list(combinations(range(5), 2))
    in_order = sum((ours[i] < ours[j]) == (theirs[i] < theirs[j]) for i, j in pairs)
    assert kendall_tau(ours, theirs) == pytest.approx((2 * in_order - len(pairs)) / len(pairs))
    assert kendall_tau(ours, theirs) == kendall_tau(theirs, ours)


@given(figures, st.floats(0.5, 2e3))
def test_no_constant_meets_more_figures_than_the_best(theirs: list[float], other: float) -> None:
    def met(value: float) -> int:
        return sum(abs(value / each - 1) <= NEAR for each in theirs)

    assert met(best_constant(theirs)) >= met(other)


def test_one_constant_per_model_meets_eighteen_of_the_thesis_s_twenty_figures() -> None:
    rest = (
        [38.66, 39.81, 34.15, 32.26, 42.34],
        [38.66, 33.35, 37.69, 37.60, 40.36],
        [11.58, 16.18, 14.00, 12.80, 18.39],
    )
    met = [
        sum(abs(best_constant(model) / each - 1) <= NEAR for each in model)
        for model in ([*AMOEBANET.values()], *rest)
    ]
    assert met == [4, 5, 5, 4]


def test_agreement_is_of_the_methods_that_both_have() -> None:
    ours = {"m_topo": 40.0, "auto": 99.0, "netsplit": 50.0, "m_etf": 20.0}
    agreement = Agreement.of(ours, AMOEBANET)
    assert agreement is not None
    assert (agreement.figures, agreement.within) == (3, 3)
    assert agreement.tau == pytest.approx(1.0)
    assert agreement.spread == pytest.approx(1.5)
    assert agreement.published_spread == pytest.approx(41.83 / 19.59 - 1)
    assert agreement.constant_within == 2
    assert agreement_table({"here": agreement}).texts[0][:4] == ["here", "3", "3", "+1.00"]
    assert Agreement.of({"m_topo": 40.0}, AMOEBANET) is None
    assert Agreement.of(ours, {}) is None
