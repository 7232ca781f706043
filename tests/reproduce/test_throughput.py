"""The rank correlation beside printed throughputs, by hand."""

import pytest

from reproduce.throughput import kendall_tau


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
