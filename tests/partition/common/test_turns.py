"""Micro-batches over unlike devices: as good as any way to share them, and in an order that mixes them."""

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from netsplit.partition.common.turns import turns_for

some_seconds = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=4)


def counts(devices: int, microbatches: int) -> Iterator[tuple[int, ...]]:
    """Every way to give so many micro-batches to so many devices."""
    if devices == 1:
        yield (microbatches,)
        return
    for own in range(microbatches + 1):
        for rest in counts(devices - 1, microbatches - own):
            yield (own, *rest)


def end_s(seconds: Sequence[float], taken: Sequence[int]) -> float:
    return max(each * count for each, count in zip(seconds, taken, strict=True))


@given(some_seconds, st.integers(1, 9))
def test_no_way_to_share_micro_batches_ends_earlier(seconds: list[float], microbatches: int) -> None:
    """Of the first few neither: a smaller batch has the same turns."""
    turns = turns_for(seconds, microbatches)
    assert len(turns) == microbatches
    for batch in range(1, microbatches + 1):
        taken = [turns[:batch].count(place) for place in range(len(seconds))]
        assert end_s(seconds, taken) == min(end_s(seconds, each) for each in counts(len(seconds), batch))


def test_equal_devices_take_one_after_the_other_and_faster_ones_more() -> None:
    assert turns_for([1.0, 1.0, 1.0], 6) == (0, 1, 2, 0, 1, 2)
    assert turns_for([2.0, 1.0], 6) == (1, 0, 1, 1, 0, 1)
    assert turns_for([100.0, 1.0], 4) == (1, 1, 1, 1)
