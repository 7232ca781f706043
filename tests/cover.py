"""Products of many values, of which each run takes a few: a drawn cover, or all of them.

`make test` tries every value, and of `pairs` every pair of values, in combinations that are the same in every
run; ``NETSPLIT_TEST_SEED=<seed> make test`` draws others; `make test-all` tries every combination.
"""

import os
import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product

import pytest

from tests.examples import all_asked_for

__all__ = ["SEED", "cover", "covering", "few", "pairs", "seed_of_run"]

SEED = "NETSPLIT_TEST_SEED"


def seed_of_run() -> int:
    """What the combinations are drawn with; 0, where the environment does not say."""
    return int(os.environ.get(SEED, "0"))


def covering(**axes: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrises with all combinations, or with so few that every value is taken once."""
    return _parametrised(1, axes)


def pairs(**axes: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrises with all combinations, or with so few that every pair of values is taken once."""
    return _parametrised(2, axes)


def few(values: Sequence[str], count: int) -> list[str]:
    """So many of them, drawn; or all."""
    return list(values) if all_asked_for() else random.Random(seed_of_run()).sample(list(values), count)


def _parametrised(strength: int, axes: dict[str, Iterable[object]]) -> pytest.MarkDecorator:
    values = [list(each) for each in axes.values()]
    rows = (
        list(product(*values)) if all_asked_for() else cover(values, strength, random.Random(seed_of_run()))
    )
    return pytest.mark.parametrize(tuple(axes), rows)


def cover(axes: Sequence[Sequence[object]], strength: int, draw: random.Random) -> list[tuple[object, ...]]:
    """Rows in which every combination of `strength` axes' values occurs; greedy, and random among equals."""
    sizes = [range(len(each)) for each in axes]
    columns = list(combinations(range(len(axes)), strength))
    missing = {(those, each) for those in columns for each in product(*(sizes[n] for n in those))}
    left = sorted(missing)
    draw.shuffle(left)
    rows = []
    for those, wanted in left:
        if (those, wanted) not in missing:
            continue
        tries = []
        for _ in range(20):
            row = [draw.choice(each) for each in sizes]
            for n, value in zip(those, wanted, strict=True):
                row[n] = value
            new = {(each, tuple(row[n] for n in each)) for each in columns} & missing
            tries.append((len(new), tuple(row), new))
        _, best, new = max(tries, key=lambda each: each[0])
        missing -= new
        rows.append(tuple(axis[n] for axis, n in zip(axes, best, strict=True)))
    return rows
