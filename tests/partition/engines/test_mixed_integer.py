"""Models as sparse arrays, and the engines that take them: the optimum is that of trying everything."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.partition.engines.by_picos import PREFIX, picos_engines, picos_problem
from netsplit.partition.engines.mixed_integer import highs, solve
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


@given(
    blocks=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 4), coefficient, st.booleans()), min_size=1, max_size=4
    )
)
def test_a_block_is_as_many_rows_as_it_has(blocks):
    one, other = Rows(), Rows()
    for height, width, rhs, equal in blocks:
        columns = np.array([[(row + column) % 4 for column in range(width)] for row in range(height)])
        values = np.arange(1.0, width + 1)
        one.add_block(columns.reshape(height, width), values, rhs, equal=equal)
        for row in columns:
            other.add(zip(row, values, strict=True), rhs, equal=equal)
    unit = np.ones(4)
    a, b = (rows.model(0 * unit, unit, unit, unit) for rows in (one, other))
    for name in ("row_lower", "row_upper", "starts", "columns", "values"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert one.coefficients == other.coefficients == len(a.values)
    assert len(one) == len(other)


def test_highs_has_the_model_as_it_was_gathered():
    rows = Rows()
    rows.add([(0, 1.0), (2, -2.5)], 3.0)
    rows.add([(1, 4.0)], 0.5, equal=True)
    solver = highs(1.0, 0.0, 0)
    rows.model([0, 0, -1], [1, 1, np.inf], [0, 0, 7], [True, True, False]).pass_to(solver)
    lp = solver.getLp()
    assert (solver.getNumCol(), solver.getNumRow(), solver.getNumNz()) == (3, 2, 3)
    assert list(lp.col_cost_) == [0, 0, 7]
    assert list(lp.col_lower_) == [0, 0, -1]
    assert list(lp.row_upper_) == [3.0, 0.5]
    assert list(lp.row_lower_) == [-np.inf, 0.5]


def test_a_large_model_is_handed_to_picos_as_one_matrix():
    """209,000 coefficients, which as rows or as a product with a constant take PICOS 40 CPU seconds."""
    rows, draw = Rows(), np.random.default_rng(0)
    rows.add_block(draw.integers(0, 2000, (15_675, 1)) + 5 * np.arange(10), 1.0, 3.0)
    rows.add_block(draw.integers(0, 2000, (5_225, 1)) + 5 * np.arange(10), 2.0, 4.0, equal=True)
    assert rows.coefficients == 209_000
    unit = np.ones(3000)
    model = rows.model(0 * unit, unit, unit, np.arange(3000) < 1000)
    began = time.process_time()
    problem, parts = picos_problem(model)
    assert time.process_time() - began < 2.0
    assert problem.type == "Mixed-Integer Linear Program"
    assert [con.size for con in problem.constraints.values()] == [(5225, 1), (15675, 1)]
    assert sum(own.sum() for own in parts.values()) == 3000


def test_gurobi_without_a_licence_for_the_size_says_so():
    pytest.importorskip("gurobipy")
    rows, unit = Rows(), np.ones(5000)
    rows.add([(column, 1.0) for column in range(5000)], 1.0, equal=True)
    model = rows.model(0 * unit, unit, unit, unit)
    outcome = solve(model, engine="auto", **SOLVED)
    if outcome.engine.startswith("gurobi"):
        pytest.skip("this licence takes the size")
    assert "size-limited" in outcome.notes["gurobi_not_used"]
    assert outcome.bound == pytest.approx(1.0)
    with pytest.raises(ConfigError, match=r"engine 'picos:gurobi' cannot be used: .*size-limited.*; use 'hi"):
        solve(model, engine="picos:gurobi", **SOLVED)


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
