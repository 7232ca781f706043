"""The size of the thesis's model: counted before it is built, and refused where memory is not enough."""

import pytest

from netsplit.errors import ModelSizeError
from netsplit.partition import NetSplit
from netsplit.partition.engines.mixed_integer import highs
from netsplit.partition.methods.pesto.pesto import Pesto
from netsplit.partition.methods.thesis.coplace import coplace
from netsplit.partition.methods.thesis.formulation import Formulation
from tests.partition.builders import large_problem

METHODS = pytest.mark.parametrize("method", [NetSplit, Pesto])


@METHODS
def test_the_engine_has_as_many_where_none_is_zero(method):
    problem = large_problem(60, devices=4)
    formulation = method.formulation(problem, coplace(problem, 8))
    solver = highs(1.0, 0.0, 0)
    formulation.build().pass_to(solver)
    assert solver.getNumNz() == formulation.coefficients()


@METHODS
def test_a_model_that_needs_too_much_memory_is_not_built(method, monkeypatch):
    monkeypatch.setattr(Formulation, "build", lambda _: pytest.fail("built"))
    said = (
        rf"{method.name}'s model of 192 groups on 96 devices has \d+ coefficients and would take about"
        rf" [\d.]+ GB, where 2\.0 GB are allowed: give {method.name} fewer groups \(groups=, less than 192\)"
        r" or use fewer devices"
    )
    with pytest.raises(ModelSizeError, match=said):
        method().partition(large_problem(400, devices=96, room=40.0))
