"""The order of a draft's nodes is that of a list in which the same is done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from netsplit.rewrite.node_order import NodeOrder

CHANGES = st.lists(st.tuples(st.sampled_from(["after", "before", "rename", "remove"]), st.integers(0, 999)))


@given(st.integers(0, 5), CHANGES)
def test_it_is_the_order_of_a_list(count: int, changes: list[tuple[str, int]]) -> None:
    names = [f"n{i}" for i in range(count)]
    order = NodeOrder(names)
    for i, (change, at) in enumerate(changes):
        other, new = ["", *names][at % (len(names) + 1)], f"new{i}"
        if change == "after":
            names.insert(names.index(other) + 1 if other else 0, new)
            order.put_after(new, other)
        elif not other:
            continue
        elif change == "before":
            names.insert(names.index(other), new)
            order.put_before(new, other)
        elif change == "rename":
            names[names.index(other)] = new
            order.rename(other, new)
        else:
            names.remove(other)
            order.remove(other)
        assert list(order) == names
        assert list(reversed(order)) == names[::-1]
        assert sorted(names, key=order.place) == names
        for after in ["", *names]:
            behind = names.index(after) + 1 if after else 0
            own = [name for name in names if order.is_next_or_before(name, after)]
            assert own == names[: behind + 1]
