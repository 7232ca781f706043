"""Agreement with published throughputs: counted by hand, and by definition."""

import pytest

from netsplit.tracking.cases import Agreement, agreement_table, kendall_tau

AMOEBANET = {"pesto": 30.17, "m_topo": 36.46, "m_etf": 19.59, "m_sct": 28.82, "netsplit": 41.83}


@pytest.mark.parametrize(
    ("ours", "theirs", "tau"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 4, 3], [1, 2, 3, 4], 4 / 6),  # five pairs in order, one not
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5),  # a tie: two of its pairs and three of the other side are ordered
        ([5, 5, 5], [1, 2, 3], None),
    ],
)
def test_kendalls_tau_by_hand(ours: list[float], theirs: list[float], tau: float | None) -> None:
    assert kendall_tau(ours, theirs) == (None if tau is None else pytest.approx(tau))


def test_agreement_is_of_the_methods_that_both_have() -> None:
    ours = {"m_topo": 40.0, "auto": 99.0, "netsplit": 50.0, "m_etf": 20.0}
    agreement = Agreement.between(ours, AMOEBANET)
    assert agreement is not None
    assert (agreement.figures, agreement.within) == (3, 3)
    assert agreement.tau == pytest.approx(1.0)
    assert agreement.spread == pytest.approx(1.5)
    assert agreement.published_spread == pytest.approx(41.83 / 19.59 - 1)
    assert agreement.constant_within == 2
    assert agreement_table({"here": agreement}).texts[0][:4] == ["here", "3", "3", "+1.00"]
    assert Agreement.between({"m_topo": 40.0}, AMOEBANET) is None
    assert Agreement.between(ours, {}) is None
