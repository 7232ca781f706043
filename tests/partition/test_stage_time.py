"""PipeDream's time of the slowest stage, as the score of any placement."""

from netsplit.partition.objectives import StageTime
from netsplit.placement.placement import Placement, SolverReport
from tests.partition.stage_problems import chain_problem, devices


def placed(device_of: dict[str, str]) -> Placement:
    priority = {name: i for i, name in enumerate(device_of)}
    return Placement("test", device_of, priority, SolverReport("heuristic", 0.0))


def test_without_stages_each_device_runs_what_it_holds_and_pairs_of_devices_transfer():
    problem = chain_problem([1.0, 2.0, 3.0], [50, 700], [0, 0, 0], devices(2, 100.0))
    apart = placed({"n0": "d0", "n1": "d1", "n2": "d0"})
    assert StageTime().score_s(problem, apart) == 14.0  # 2 * 700 / 100
    assert StageTime().score_s(problem, placed({"n0": "d0", "n1": "d1", "n2": "d1"})) == 5.0


def test_without_stages_the_bandwidth_is_of_the_level_that_joins_two_devices():
    levels = [(2, 1000.0), (2, 10.0)]
    problem = chain_problem([1.0, 1.0], [100], [0, 0], devices(4, 10.0, levels))
    assert StageTime().score_s(problem, placed({"n0": "d0", "n1": "d1"})) == 1.0
    assert StageTime().score_s(problem, placed({"n0": "d1", "n1": "d2"})) == 20.0
