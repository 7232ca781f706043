"""Models as sparse arrays, and the engines that take them: the optimum is that of trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.partition.engines.mixed_integer import PREFIX, picos_engines, solve
from netsplit.partition.engines.rows import Rows
from tests.examples import tried

BINARIES = 4
ENGINES = ["highs", "gurobi", *(PREFIX + name for name in picos_engines())]
SOLVED = {"time_limit_s": 20.0, "gap": 0.0, "seed": 1}
coefficient = st.integers(-5, 5).map(float)


@st.composite
def binary_models(draw):
    """Binaries x and one number z >= every row of x: the least z, within rows that x must keep."""
    dense = st.lists(coefficient, min_size=BINARIES, max_size=BINARIES)
    above = draw(st.lists(st.tuples(dense, coefficient), min_size=1, max_size=3))
    kept = draw(st.lists(st.tuples(dense, coefficient, st.booleans()), max_size=2))
    return above, kept


def rows_of(above, kept):
    rows = Rows()
    for values, constant in above:  # values @ x + constant <= z
        rows.add([*sparse(values), (BINARIES, -1.0)], -constant)
    for values, rhs, equal in kept:
        rows.add(sparse(values), rhs, equal=equal)
    return rows


def sparse(values):
    return [(column, value) for column, value in enumerate(values) if value]


def model_of(rows):
    ones, cost = np.ones(BINARIES + 1), np.zeros(BINARIES + 1)
    upper, integer = ones.copy(), ones.astype(bool)
    upper[-1], integer[-1], cost[-1] = np.inf, False, 1.0
    return rows.model(0 * ones, upper, cost, integer)


def least_of_all(above, kept):
    best = None
    for x in itertools.product((0.0, 1.0), repeat=BINARIES):
        sums = [(np.dot(values, x), rhs, equal) for values, rhs, equal in kept]
        if all(left == rhs if equal else left <= rhs for left, rhs, equal in sums):
            z = max(0.0, *(np.dot(values, x) + constant for values, constant in above))
            best = z if best is None else min(best, z)
    return best


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=tried(40), deadline=None)
@given(parts=binary_models())
def test_the_optimum_is_that_of_all_assignments(engine, parts):
    try:
        outcome = solve(model_of(rows_of(*parts)), engine=engine, **SOLVED)
    except ConfigError as error:
        pytest.skip(str(error))  # no licence
    best = least_of_all(*parts)
    if best is None:
        assert outcome.status == "infeasible"
        assert outcome.values is None
        return
    above, kept = parts
    assert outcome.status == "optimal"
    assert outcome.bound == pytest.approx(best, abs=1e-6)
    x = np.round(outcome.values[:BINARIES])
    assert max(0.0, *(np.dot(values, x) + constant for values, constant in above)) == best
    assert all(np.dot(v, x) == rhs if equal else np.dot(v, x) <= rhs for v, rhs, equal in kept)
    assert outcome.notes["variables"] == BINARIES + 1
    assert outcome.notes["constraints"] == len(above) + len(kept)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_of_no_time_gives_an_answer_that_holds_or_none(engine):
    """Whatever an engine leaves behind when it is stopped is no answer unless it keeps every row."""
    rows, draw, n = Rows(), np.random.default_rng(0), 60
    for _ in range(40):
        rows.add(list(enumerate(draw.integers(1, 90, n).astype(float))), 900.0)
    model = rows.model(np.zeros(n), np.ones(n), -draw.integers(1, 90, n), np.ones(n))
    try:
        outcome = solve(model, engine=engine, time_limit_s=0.01, gap=0.0, seed=1)
    except ConfigError as error:
        pytest.skip(str(error))  # no licence
    assert outcome.status in ("feasible", "limit")
    assert (outcome.values is None) == (outcome.status == "limit")
    if outcome.values is not None:
        a = model.values.reshape(40, n)
        assert np.all(a @ np.round(outcome.values) <= 900)
        assert outcome.bound is None or outcome.bound <= model.cost @ outcome.values
