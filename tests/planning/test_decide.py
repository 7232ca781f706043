"""The one way to a plan: what is refused, what is scored, and what a plan holds."""

from dataclasses import dataclass, field, replace

import pytest

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.partition import Choice, MaxLoad, Partitioner, Placement, Problem, SimulatedIteration, Single
from netsplit.planning.decide import decide, proven_s
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.rewrite import Split, applied
from netsplit.simulate import simulate
from netsplit.simulate.simulator import Simulator
from tests.partition.builders import with_capacities
from tests.partition.meters import SlowParts
from tests.partition.methods.auto.test_in_parts import problem_of
from tests.planning.test_verify import answer, four


@dataclass(frozen=True)
class Given(Partitioner):
    """Answers what the test says."""

    placement: Placement

    name = "given"

    def choose(self, problem: Problem) -> Choice:
        raise AssertionError("`partition` is the test's own")

    def partition(self, problem: Problem) -> Placement:  # type: ignore[misc]
        return self.placement


def simulated(problem: Problem, schedule: Schedule | None = None) -> Problem:
    evaluate = Simulator(problem.graph, problem.cluster, problem.costs, schedule or SingleBatch())
    return replace(problem, simulator=evaluate, objective=SimulatedIteration())


def test_a_plan_is_compiled_simulated_and_scored_by_what_it_takes() -> None:
    problem = simulated(four(), GPipe(3))
    plan = decide(problem, Given(answer(problem, "0012")))
    program, timeline = plan.simulated
    assert program.microbatches == 3
    assert simulate(program, problem.cluster, problem.costs) == timeline
    assert plan.objective_s == timeline.iteration_s
    assert plan.bound_s == proven_s(problem)
    assert 0 < plan.bound_s < plan.objective_s
    assert (plan.gap, plan.status) == (1 - plan.bound_s / plan.objective_s, "heuristic")
    assert plan.nodes == {"d0": 2, "d1": 1, "d2": 1}
    assert list(plan.loads) == [device.name for device in problem.cluster.devices]
    assert plan.explain().objective_s == plan.objective_s
    assert "gpipe with 3 micro-batches" in str(plan.summary())


@pytest.mark.parametrize(
    ("where", "rule"), [("0112", "of one colocated set"), ("0013", "not a device of the cluster")]
)
def test_an_answer_that_breaks_a_rule_is_no_plan(where: str, rule: str) -> None:
    problem = simulated(four())
    for room in (True, False):
        with pytest.raises(NetSplitError, match=rule):
            decide(problem, Given(answer(problem, where)), room)


def test_what_is_over_the_capacities_is_a_plan_only_where_that_is_asked_for() -> None:
    problem = simulated(with_capacities(four(), [1000, 1000, 30]))
    over = Given(answer(problem, "0012"))
    with pytest.raises(InfeasibleError, match="on 'd2'"):
        decide(problem, over)
    plan = decide(problem, over, room=False)
    assert plan.loads["d2"].nbytes > plan.loads["d2"].capacity_bytes == 30
    assert plan.objective_s == decide(simulated(four()), over).objective_s


def test_what_is_not_contiguous_is_refused_where_the_objective_asks_for_it() -> None:
    problem = replace(four(), objective=MaxLoad(contiguous=True))
    there_and_back = Given(answer(problem, "0010"))
    with pytest.raises(NetSplitError, match="ignored contiguity"):
        decide(problem, there_and_back)
    assert decide(replace(problem, objective=problem.objective.relaxed()), there_and_back).seconds > 0


@dataclass
class Halves(Partitioner):
    """The wide layer in two parts, where that is said to take less than whole operators on one device."""

    claims: bool = False  # seconds of its answer
    asked: list[Problem] = field(default_factory=list)
    name = "halves"

    def choose(self, problem: Problem) -> Choice:
        self.asked.append(problem)
        rewrites = (Split("linear", 1, (256, 256)),)
        graph = applied(problem.graph, rewrites)
        parts = Choice({name: f"cpu:{int(name.endswith(':1'))}" for name in graph.nodes}, rewrites=rewrites)
        whole = Choice(dict.fromkeys(problem.graph.nodes, "cpu:0"))
        seconds = [self._seconds(problem, each) for each in (parts, whole)]
        return replace(
            (parts, whole)[seconds[1] < seconds[0]], objective_s=min(seconds) if self.claims else None
        )

    def _seconds(self, problem: Problem, choice: Choice) -> float:
        graph = applied(problem.graph, choice.rewrites)
        placement = replace(
            Single().partition(problem),
            device_of=choice.device_of,
            rewrites=choice.rewrites,
            priority={name: rank for rank, name in enumerate(graph.nodes)},
        )
        return problem.objective.score_s(problem, placement)


@pytest.mark.parametrize(("times", "asked"), [(1.0, 1), (1.1, 1), (5.0, 2)])
def test_a_method_whose_parts_take_much_longer_is_asked_once_more(times: float, asked: int) -> None:
    """With what was measured of them, of which it then knows."""
    method = Halves(claims=True)
    meter, problem = SlowParts.on(problem_of(1.0), lambda rewrites: times)
    plan = decide(problem, method)
    assert len(method.asked) == asked
    assert len(meter.asked) == 1
    assert bool(plan.placement.rewrites) == (asked == 1)
    assert plan.problem.meter is None
    assert plan.objective_s == pytest.approx(plan.simulated[1].iteration_s)
    claimed = plan.placement.report.objective
    assert claimed is None or claimed == pytest.approx(plan.objective_s), "nothing is claimed of estimates"
