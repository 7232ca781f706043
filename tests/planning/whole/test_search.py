"""Where a search for a whole plan goes on: tied weights, plans that are refused, devices that are tight."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import read_bytes
from netsplit.placement.placement import Placement
from netsplit.planning import decide
from netsplit.planning.decide import decide_whole, verified
from netsplit.planning.plan import Plan
from netsplit.planning.whole import search
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import KINDS, identity, problem_under
from netsplit.planning.whole.stages import NodeLine, StageCosts, placed, stages_of_line
from netsplit.planning.workload import Workload
from netsplit.program.schedules import GPipe, OneFOneB, Schedule
from tests.builders import costs_of, cpus
from tests.nets import CASES, TOLERANCE
from tests.planning.whole.test_whole_plan import cluster, planned
from tests.runtime.equivalence.running import assert_same, batches_of, captured_for, local, plain

FAST = "100GB"


@cache
def problem_of(case: str, microbatches: int, devices: int = 3, capacity: int = 2**40) -> Problem:
    """The problem of a case's eight samples, every one of which takes as long."""
    own = CASES[case]
    graph = captured_for(own, GPipe(microbatches))
    each_s = 1e-3 * graph.batch_size
    work = Workload("net", graph, costs_of(graph, each_s, 2 * each_s), cpus(devices, capacity))
    return work.problem(objective="simulated", schedule=GPipe(microbatches), memory="lifetimes")


def staged(problem: Problem, groups: tuple[tuple[int, ...], ...], microbatches: int) -> Placement:
    line = NodeLine.of(problem)
    cut = stages_of_line(StageCosts(problem, line, microbatches, recompute=False), groups)
    assert cut is not None
    return placed(problem, line, cut, microbatches)


def comes_back(problem: Problem, placement: Placement) -> bool:
    """Whether a stage reads what a later one makes."""
    number = {name: s for s, stage in enumerate(placement.stages) for name in stage.nodes}
    feeders = problem.graph.predecessors
    return any(number[u] > number[v] for v in number for u in feeders[v])


@pytest.mark.parametrize("schedule", [OneFOneB(4), GPipe(4)], ids=["1f1b", "gpipe"])
@pytest.mark.parametrize("groups", [((0,), (1, 2)), ((0, 1), (2,))])
def test_stages_with_replicas_that_tied_weights_come_back_to_train_as_plain_pytorch(
    groups: tuple[tuple[int, ...], ...], schedule: Schedule
) -> None:
    problem = problem_under(problem_of("tied", 4), schedule)
    placement = staged(problem, groups, 4)
    assert comes_back(problem, placement)
    assert placement.replicas
    plan = verified(problem, placement)
    case = CASES["tied"]
    trained = local(problem.the_simulator.program(plan.placement), case, batches_of(case))
    assert_same(trained, plain("tied", 2), TOLERANCE)


def test_a_plan_that_verification_refuses_is_told_and_the_next_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[tuple[Schedule, object]] = []

    def first_refused(problem: Problem, placement: Placement, *args: Any, **keys: Any) -> Any:
        if len(refused) < 2:
            refused.append((problem.the_simulator.schedule, identity(placement)))
            raise NetSplitError("the placement is wrong: of a test.")
        return verified(problem, placement, *args, **keys)

    monkeypatch.setattr(decide, "verified", first_refused)
    assert all(problem_of("chain", m) for m in (2, 4))  # which takes long, the first time
    whole = decided(lambda m: problem_of("chain", m), (2, 4))
    assert len(refused) == 2
    assert len({*refused, (whole.schedule, identity(whole.placement))}) == 3
    assert caplog.text.count("Verification refused a plan") == caplog.text.count("is wrong: of a test.") == 2
    rows = [row.samples_per_s for row in whole.choice.frontier if row.samples_per_s]
    assert whole.samples_per_s == pytest.approx(max(rows))
    monkeypatch.setattr(decide, "verified", always_refused)
    with pytest.raises(NetSplitError, match="of a test"):
        decided(lambda m: problem_of("chain", m), (2,))


def always_refused(*args: Any, **keys: Any) -> Any:
    raise NetSplitError("the placement is wrong: of a test.")


def decided(problems: Callable[[int], Problem], counts: tuple[int, ...], **options: Any) -> Plan:
    open_ = AutoSchedule(**({"time_limit_s": 1.5} | options))
    return decide_whole(problems, counts, 8, open_)


@pytest.fixture
def only_heeding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a line nor a method that takes no long has anything."""
    monkeypatch.setattr(search, "QUICK_METHODS", ())
    monkeypatch.setattr(search.WholeSearch, "_asked", lambda search: iter(()))


@pytest.mark.usefixtures("only_heeding")
def test_methods_that_heed_capacities_are_asked_where_nothing_else_fits() -> None:
    free = decided(lambda m: problem_of("chain", m, 2), (1, 4), replicas=False)
    assert free.choice.frontier[0].placement in ("auto", "netsplit")
    one = problem_of("chain", 4, 1).the_simulator
    alone = Placement(
        "hand", dict.fromkeys(one.graph.nodes, "cpu:0"), one.graph.position, free.placement.report
    )
    tight = int(0.9 * one(alone).peak_bytes["cpu:0"])
    whole = decided(lambda m: problem_of("chain", m, 2, tight), (1, 4), recompute=False)
    assert whole.choice.frontier[0].placement in ("auto", "netsplit")
    assert max(whole.peak_bytes.values()) <= tight


def test_that_nothing_fits_is_said_where_bytes_prove_it_and_else_that_nothing_was_found() -> None:
    """On one device, with all kept: a byte less than the plan has does not fit, which nothing proves."""
    alone = decided(lambda m: problem_of("chain", m, 1), (1,))

    def refusal(capacity: int) -> str:
        with pytest.raises(InfeasibleError) as caught:
            decided(lambda m: problem_of("chain", m, 1, capacity), (1,), recompute=False, time_limit_s=0.3)
        return str(caught.value)

    (peak,) = alone.peak_bytes.values()
    little, tight = refusal(100), refusal(peak - 1)
    assert little.startswith("no plan fits on cluster 'cpu1', as the node")
    assert " on one device, and none has more than 100 bytes. The nearest plan tried" in little
    assert tight.startswith("no plan was found that fits on cluster 'cpu1' in ")
    assert "raise schedule.time_limit_s. The nearest plan tried" in tight
    for said in (little, tight):
        assert f"It fits with {read_bytes(peak)} on each device" in said


@pytest.mark.parametrize(
    ("count", "options", "said"),
    [
        (1, {}, {" plans skipped: they need at least 2 devices."}),
        (3, {"time_limit_s": 1e-6}, {" plans skipped: none was found in time."}),
        (3, {}, set()),
    ],
)
def test_every_kind_has_a_row_or_a_sentence(count: int, options: dict[str, Any], said: set[str]) -> None:
    whole = planned(cluster(count, bandwidth=FAST), samples=65536, **options)
    shown = {row.kind for row in whole.choice.frontier}
    skipped = " ".join(each.partition(" plans skipped: ")[0].lower() for each in whole.choice.absent)
    words = {"single": "one-device", "operators": "operator-by-operator"}
    assert all((kind in shown) != (words.get(kind, kind) in skipped) for kind in KINDS)
    assert all(any(each in sentence for sentence in whole.choice.absent) for each in said)
    assert all(each in str(whole) for each in whole.choice.absent)
