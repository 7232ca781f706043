"""Models as sparse arrays, and the engines that take them: the optimum is that of trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.partition.engines.mixed_integer import highs, solve
from netsplit.partition.engines.rows import Rows
from tests.examples import tried

BINARIES = 4
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


@pytest.mark.parametrize("engine", ["highs", "gurobi"])
@settings(max_examples=tried(40), deadline=None)
@given(parts=binary_models())
def test_the_optimum_is_that_of_all_assignments(engine, parts):
    if engine == "gurobi":
        pytest.importorskip("gurobipy")
    try:
        outcome = solve(model_of(rows_of(*parts)), engine=engine, **SOLVED)
    except ConfigError:
        pytest.skip("no licence")
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


def test_gurobi_that_has_no_licence_for_the_size_is_found_out_before_a_file_is_written(monkeypatch):
    gurobipy = pytest.importorskip("gurobipy")
    monkeypatch.setattr(gurobipy, "read", lambda *_: pytest.fail("read"))
    rows, unit = Rows(), np.ones(5000)
    rows.add([(column, 1.0) for column in range(5000)], 1.0, equal=True)
    outcome = solve(rows.model(0 * unit, unit, unit, unit), engine="auto", **SOLVED)
    assert "size-limited" in outcome.notes["gurobi_not_used"]
    assert outcome.bound == pytest.approx(1.0)
