"""Sets of devices that may change places, against all exchanges tried."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from netsplit.partition.common.interchangeable import interchangeable


@given(st.integers(1, 5), st.data())
def test_two_devices_stand_in_one_set_just_where_their_exchange_changes_nothing(
    n: int, data: st.DataObject
) -> None:
    own = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    cells = data.draw(st.lists(st.integers(0, 1), min_size=n * n, max_size=n * n))
    table = np.array(cells).reshape(n, n)
    table[np.diag_indices(n)] = 0
    sets = interchangeable(own, [table])
    assert sorted(v for group in sets for v in group) == list(range(n))
    together = {pair for group in sets for pair in combinations(group, 2)}
    for p, q in combinations(range(n), 2):
        swap = list(range(n))
        swap[p], swap[q] = q, p
        same = own[p] == own[q] and bool((table == table[np.ix_(swap, swap)]).all())
        assert ((p, q) in together) == same
