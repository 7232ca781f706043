"""The score recomputed by its definition is the objective's, of any placement."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.partition import MaxLoad, Objective, PipeDream, Placement, Problem, Random, StageTime
from netsplit.partition.base import Loads
from netsplit.planning.decide import verified
from netsplit.planning.verify_score import recomputed_s
from tests.partition.builders import problems
from tests.planning.test_verify import answer, four, trained


@settings(max_examples=60, deadline=None)
@given(
    problem=problems(max_devices=4, roomy=True),
    split=st.booleans(),
    backward=st.booleans(),
    seed=st.integers(0, 99),
)
def test_stage_time_is_that_of_the_other_definition(
    problem: Problem, split: bool, backward: bool, seed: int
) -> None:
    problem = trained(problem) if backward else problem
    problem = replace(problem, objective=StageTime(), seed=seed)
    if split and len(problem.cluster.devices) == 4:
        problem = replace(problem, cluster=replace(problem.cluster, levels=((2, 100.0), (2, 20.0))))
    answers = [Random().partition(problem)]
    with suppress(InfeasibleError):
        answers.append(PipeDream().partition(problem))
    for placement in answers:
        expected = problem.objective.score_s(problem, placement)
        assert recomputed_s(problem, placement) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("objective", [MaxLoad(), StageTime()])
def test_a_score_that_is_not_the_definitions_is_a_fault(objective: Objective) -> None:
    kind = type(objective)

    class Wrong(kind):  # type: ignore[misc, valid-type]
        def loads(self, problem: Problem, placement: Placement) -> Loads:
            right = super().loads(problem, placement)
            return replace(right, seconds=right.seconds * 1.001)

    problem = replace(four(), objective=Wrong())
    with pytest.raises(NetSplitError, match="by the definition"):
        verified(problem, answer(problem, "0012"))
