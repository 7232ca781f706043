"""The size of the thesis's model: counted before it is built, and refused where memory is not enough."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings

from netsplit.errors import ModelSizeError
from netsplit.partition import Auto, NetSplit
from netsplit.partition.engines import mixed_integer
from netsplit.partition.engines.mixed_integer import highs
from netsplit.partition.methods.pesto.pesto import Pesto
from netsplit.partition.methods.thesis import grouped
from netsplit.partition.methods.thesis.coplace import coplace
from netsplit.partition.methods.thesis.formulation import Formulation
from tests.examples import tried
from tests.partition.builders import large_problem, problems

METHODS = pytest.mark.parametrize("method", [NetSplit, Pesto])


@METHODS
@settings(max_examples=tried(60), deadline=None)
@given(problem=problems())
def test_the_coefficients_counted_are_those_built(method, problem):
    for least in (1, 1000):
        formulation = method.formulation(problem, coplace(problem, least))
        assert formulation.coefficients() == len(formulation.build().values)


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


def test_fewer_groups_are_what_the_sentence_says_they_are(monkeypatch):
    problem = large_problem(60, devices=4, room=3.0)
    few = NetSplit.formulation(problem, coplace(problem, 2)).coefficients()
    monkeypatch.setattr(grouped, "MOST_BYTES", mixed_integer.engine_bytes(few))
    with pytest.raises(ModelSizeError, match="of 8 groups on 4 devices"):
        NetSplit().partition(problem)
    assert NetSplit(groups=2).partition(problem).report.notes["groups"] == 2


def test_auto_answers_without_the_methods_whose_models_are_too_large(monkeypatch):
    monkeypatch.setattr(grouped, "MOST_BYTES", 1000)
    report = Auto(time_limit_s=4.0, starts=2).partition(large_problem(30)).report
    assert set(report.notes["left_out"]) == {"pesto", "netsplit"}
    assert "netsplit's model of 6 groups on 3 devices" in report.notes["left_out"]["netsplit"]
    assert "m_topo" in report.notes["portfolio"]


def test_what_building_takes_is_part_of_the_limit(monkeypatch):
    """The clock runs out before the engine, which then is not started."""
    build = Formulation.build

    def slow(formulation):
        time.sleep(0.3)
        return build(formulation)

    monkeypatch.setattr(Formulation, "build", slow)
    monkeypatch.setattr(grouped, "solve", lambda *_, **__: pytest.fail("solved"))
    placement = NetSplit().partition(replace(large_problem(30), time_limit_s=0.2))
    assert placement.report.status == "limit"
    assert placement.report.notes["variables"] > 0
    assert placement.report.bound is None
