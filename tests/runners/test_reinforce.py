"""`examples/reinforce.py`, the worked example of a partitioner of one's own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from netsplit.config import build
from netsplit.errors import ConfigError, InfeasibleError
from netsplit.partition import MaxLoad, Problem, SimulatedIteration
from netsplit.planning.decide import decide
from netsplit.program import GPipe, Schedule
from netsplit.program.schedules import ZBH1
from netsplit.simulate.simulator import Simulator
from tests.cover import covering
from tests.partition.builders import large_problem, required_bytes, trained, with_capacities

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python and configs of the folder that the command is called in."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.delitem(sys.modules, "reinforce", raising=False)


def method(*overrides: str) -> Any:
    words = [f"hydra.searchpath=[file://{ROOT / 'examples/conf'}]", "partitioner=[reinforce]"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", [*words, *(f"partitioner.reinforce.{each}" for each in overrides)])
    return build(config.partitioner.reinforce)


def simulated(problem: Problem, schedule: Schedule, objective: Any) -> Problem:
    evaluate = Simulator(problem.graph, problem.cluster, problem.costs, schedule)
    return replace(problem, simulator=evaluate, objective=objective)


@covering(schedule=[GPipe(3), ZBH1(3)], objective=[SimulatedIteration(), MaxLoad()])
def test_its_plan_is_verified_and_its_seconds_are_those_of_the_objective(
    schedule: Schedule, objective: Any
) -> None:
    problem = simulated(trained(large_problem(12, room=9.0)), schedule, objective)
    plan = decide(problem, method("evaluations=100", "groups=6"))
    assert plan.placement.report.objective == pytest.approx(plan.objective_s, rel=1e-9)
    assert plan.placement.report.notes["sampled"] == 100


def test_capacities_and_parameters_are_heeded() -> None:
    problem = large_problem(40, devices=4, room=9.0)
    with pytest.raises(InfeasibleError, match=r"reinforce finds no placement.*missing"):
        method("evaluations=1").partition(with_capacities(problem, [required_bytes(problem) // 5] * 4))
    with pytest.raises(ConfigError, match=r"reinforce\.groups is 0"):
        method("groups=0")
