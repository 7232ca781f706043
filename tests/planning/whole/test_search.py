"""Where a search for a whole plan goes on: tied weights, plans that are refused, devices that are tight."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.experiment.whole.devices import Devices
from netsplit.experiment.whole.foreseen import Foreseen
from netsplit.graph.batches.batch import Batch
from netsplit.optim.optimizers import MOMENTUM
from netsplit.partition import METHODS
from netsplit.partition.base import Placement, Problem
from netsplit.partition.common.capacity import read_bytes
from netsplit.partition.partitioner import Partitioner
from netsplit.partition.stage_time import StageTime
from netsplit.planning.decide import verified
from netsplit.planning.simulated import simulated_by
from netsplit.planning.verify import verify
from netsplit.planning.whole import kinds, whole_plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.gains import _one_more, changed_clusters, gains_of
from netsplit.planning.whole.judge import KINDS, Judge, identity, problem_under
from netsplit.planning.whole.kinds import roomy
from netsplit.planning.whole.lines.line import NodeLine
from netsplit.planning.whole.lines.stages import StageCosts, placed, stages_of_line
from netsplit.planning.whole.orders import Orders
from netsplit.planning.whole.search import answers, whole_search
from netsplit.planning.whole.search.search_time import SearchTime
from netsplit.planning.whole.search.whole_search import WholeSearch
from netsplit.planning.whole.whole_plan import WholePlan, decide_whole
from netsplit.planning.workload import Workload
from netsplit.program.schedules import GPipe, OneFOneB, Schedule
from tests.builders import costs_of, cpus
from tests.nets import CASES, TOLERANCE
from tests.planning.whole.test_whole_plan import batch, cluster, model, planned
from tests.runtime.equivalence.running import assert_same, batches_of, captured_for, local, plain

FAST = "100GB"


@cache
def problem_of(case: str, microbatches: int, devices: int = 3, capacity: int = 2**40) -> Problem:
    """Of the eight samples of a case, every one of which takes as long."""
    own = CASES[case]
    graph = captured_for(own, GPipe(microbatches))
    each_s = 1e-3 * graph.batch_size
    work = Workload("net", graph, costs_of(graph, each_s, 2 * each_s), cpus(devices, capacity))
    return work.problem(objective="simulated", schedule=GPipe(microbatches), memory="lifetimes")


def staged(problem: Problem, groups: tuple[tuple[int, ...], ...], microbatches: int) -> Placement:
    line = NodeLine.of(problem)
    cut = stages_of_line(StageCosts(problem, line, microbatches, recompute=False, added=False), groups)
    assert cut is not None
    return placed(problem, line, cut, microbatches)


def test_a_stage_is_named_by_the_devices_that_have_micro_batches() -> None:
    """One of two replicas that is far slower has no turn: then it is one device that computes."""
    problem = problem_of("chain", 2, 2)
    slow, fast = problem.cluster.devices
    unlike = replace(problem.cluster, devices=(replace(slow, kind="slow"), fast))
    costs = problem.costs
    costs = replace(costs, devices={**costs.devices, "slow": costs.of(fast.kind).scaled(0.01)})
    assert staged(problem.moved_to(unlike, costs), ((0, 1),), 2).method == "one device"
    assert staged(problem, ((0, 1),), 2).method == "2 replicas"


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
    trained = local(simulated_by(problem).program(plan.placement), case, batches_of(case))
    assert_same(trained, plain("tied", 2), TOLERANCE)


def test_the_formula_of_a_pipeline_asks_for_stages_in_its_order() -> None:
    problem = problem_of("tied", 4)
    placement = staged(problem, ((0,), (1, 2)), 4)
    other = Problem(problem.graph, problem.costs, problem.cluster, objective=StageTime())
    assert any("of the later stage" in each for each in verify(other, placement, capacity=False).violations)
    assert verify(problem, placement, capacity=False).ok


def test_a_plan_that_verification_refuses_is_told_and_the_next_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[tuple[Schedule, object]] = []

    def first_refused(problem: Problem, placement: Placement, *args: Any, **keys: Any) -> Any:
        if len(refused) < 2:
            refused.append((simulated_by(problem).schedule, identity(placement)))
            raise NetSplitError("the placement is wrong: of a test.")
        return verified(problem, placement, *args, **keys)

    monkeypatch.setattr(whole_plan, "verified", first_refused)
    assert all(problem_of("chain", m) for m in (2, 4))  # which takes long, the first time
    whole = decided(lambda m: problem_of("chain", m), (2, 4))
    assert len(refused) == 2
    assert len({*refused, (whole.schedule, identity(whole.placement))}) == 3
    assert caplog.text.count("refused by verification") == caplog.text.count("is wrong: of a test.") == 2
    rows = [row.samples_per_s for row in whole.frontier if row.samples_per_s]
    assert whole.samples_per_s == pytest.approx(max(rows))
    monkeypatch.setattr(whole_plan, "verified", always_refused)
    with pytest.raises(NetSplitError, match="of a test"):
        decided(lambda m: problem_of("chain", m), (2,))


def always_refused(*args: Any, **keys: Any) -> Any:
    raise NetSplitError("the placement is wrong: of a test.")


def decided(problems: Callable[[int], Problem], counts: tuple[int, ...], **options: Any) -> WholePlan:
    open_ = AutoSchedule(**({"time_limit_s": 1.5} | options))
    return decide_whole(problems, counts, 8, open_, gains=False)


@pytest.fixture
def only_heeding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a line nor a method that takes no long has anything."""
    monkeypatch.setattr(answers, "METHODS_TRIED", ())
    for room in (whole_search, kinds):
        monkeypatch.setattr(room, "stages_of_line", lambda costs, groups: None)


def test_a_method_that_fails_takes_no_other_answer_along(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, problem: Problem) -> Placement:
        raise MemoryError("much")

    for name in ("heft", "m_topo"):
        monkeypatch.setattr(METHODS[name], "partition", fails)
    plan = decided(lambda m: problem_of("chain", m, 2), (1, 4), replicas=False)
    assert {row.placement for row in plan.frontier}.isdisjoint({"heft", "m_topo"})
    open_ = AutoSchedule(time_limit_s=1.5)
    with pytest.raises(MemoryError, match="much"):
        decide_whole(lambda m: problem_of("chain", m, 2), (1, 4), 8, open_, method=METHODS["heft"]())


@pytest.mark.usefixtures("only_heeding")
def test_methods_that_heed_capacities_are_asked_where_nothing_else_fits() -> None:
    free = decided(lambda m: problem_of("chain", m, 2), (1, 4), replicas=False)
    assert free.frontier[0].placement in ("auto", "netsplit")
    one = simulated_by(problem_of("chain", 4, 1))
    alone = Placement(
        "hand", dict.fromkeys(one.graph.nodes, "cpu:0"), one.graph.position, free.placement.report
    )
    tight = int(0.9 * one(alone).peak_bytes["cpu:0"])
    whole = decided(lambda m: problem_of("chain", m, 2, tight), (1, 4), recompute=False)
    assert whole.frontier[0].placement in ("auto", "netsplit")
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
    assert " on one device, and none has more than 100 bytes; of those tried the nearest" in little
    assert tight.startswith("no plan was found to fit on cluster 'cpu1' in ")
    assert "more time (schedule.time_limit_s) may find one: of those tried the nearest" in tight
    for said in (little, tight):
        assert f"that plan fits with {read_bytes(peak)} on each device" in said


@pytest.mark.usefixtures("only_heeding")
def test_the_nearest_of_what_methods_found_is_told_where_nothing_fits() -> None:
    with pytest.raises(InfeasibleError, match=r"the nearest, (auto|netsplit|an in-order fill) under"):
        decided(lambda m: problem_of("chain", m, 2, 1000), (1, 2), recompute=False, time_limit_s=0.5)


class Refusing:
    """A method without an answer."""

    time_limit_s = None

    def __init__(self, name: str, error: NetSplitError) -> None:
        self.name, self.error = name, error

    def partition(self, problem: Problem) -> Placement:
        raise self.error


def test_a_method_that_has_no_answer_says_so_once_and_in_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=answers.__name__)
    problem = problem_of("chain", 2, 2)
    tight = InfeasibleError("heft finds no placement, as 9 bytes are missing; 99 are enough.")
    odd = NetSplitError("it takes no chains: give it none; or take another.")
    judge = cast(Judge, SimpleNamespace(winner=None))
    asked = answers.MethodAnswers(
        (1, 2, 4), AutoSchedule(), judge, None, cast(SearchTime, None), cast(Orders, None)
    )
    for schedule in (GPipe(1), GPipe(2), GPipe(4)):
        for refusing in (Refusing("heft", tight), Refusing("m_topo", odd)):
            assert asked.answer(problem, schedule, cast(Partitioner, refusing)) is None
    said = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    whole = [each.getMessage() for each in caplog.records if each.levelno == logging.DEBUG]
    assert said == [
        "heft skipped where it finds nothing that fits",
        "m_topo skipped where it refuses: it takes no chains",
    ]
    assert whole.count(f"heft has no answer for the whole plan: {tight}") == 3


def test_where_time_is_short_a_method_that_is_asked_for_has_every_device_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replicas of the whole model have one micro-batch at least on each."""
    asked: list[int] = []

    def answer(_: object, __: Problem, schedule: Schedule, ___: Partitioner) -> None:
        asked.append(schedule.microbatches)

    monkeypatch.setattr(answers.MethodAnswers, "answer", answer)
    short = SimpleNamespace(over=lambda until: len(asked) > 1, until=lambda part: 0.0, all_s=1.0)
    judge = SimpleNamespace(problem_of=lambda m: problem_of("chain", m, 2))
    method = cast(Partitioner, METHODS["ddp"]())
    search = answers.MethodAnswers(
        (1, 2, 4), AutoSchedule(), cast(Judge, judge), method, cast(SearchTime, short), cast(Orders, None)
    )
    search.ask(0.5)
    assert asked == [2, 4]


class Siamese(nn.Module):
    """Its towers share their weights, so a line comes back to the device that has them."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Linear(48, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 32)
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.tower(a) * self.tower(b)).sum(-1)


@cache
def siamese(microbatches: int, capacity: int = 2**40) -> Problem:
    with torch.device("meta"):
        pairs, wanted = (torch.zeros(24, 48), torch.zeros(24, 48)), torch.zeros(24)
        step = Foreseen(
            Siamese(), nn.SoftMarginLoss(), Batch.of(pairs, wanted),
            Devices.described(cluster(2)), MOMENTUM,
        )  # fmt: skip
        graph = step.planner(OneFOneB(microbatches)).problem().graph
    work = Workload("net", graph, costs_of(graph, 1e-3, 2e-3), cpus(2, capacity))
    return work.problem(objective="simulated", schedule=OneFOneB(microbatches), memory="lifetimes")


class Asked(BaseException):
    """A method was asked to fit, which takes far longer than to ask what it answers with room."""


def test_before_one_method_is_made_to_fit_all_were_asked_and_the_plainest_plans_have_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts, fitting = (1, 2, 4, 12), OneFOneB(12)
    free = roomy(problem_under(siamese(12), fitting))
    room = max(simulated_by(free)(METHODS["heft"]().partition(free)).peak_bytes.values())
    assert all(siamese(m, room) for m in counts)

    def asked(*args: Any, **keys: Any) -> Any:
        raise Asked

    monkeypatch.setattr(answers, "fitted", asked)
    judge, now = Judge(lambda m: siamese(m, room), recompute=False), time.perf_counter()
    open_ = AutoSchedule(recompute=False)
    search = WholeSearch(counts, open_, judge, None, SearchTime(judge, now, now + 60))
    with pytest.raises(Asked):
        search.run()
    assert judge.winner is not None
    assert judge.winner.schedule.microbatches == 12
    missing = {tried.kind: tried.missing_bytes for tried in judge.tried if not tried.fits}
    assert missing["single"] > 0
    assert missing["data parallel"] > 0


@pytest.mark.parametrize(
    ("count", "options", "said"),
    [
        (1, {}, {"Pipeline plans skipped: they need at least 2 devices."}),
        (3, {"replicas": False}, {"Hybrid plans skipped: schedule.replicas is false."}),
        (3, {"microbatches": 1}, {"Hybrid plans skipped: they need at least 2 micro-batches."}),
        (3, {"time_limit_s": 1e-6}, {"Pipeline plans skipped: there was no time to try one."}),
        (3, {}, set()),
    ],
)
def test_every_kind_has_a_row_or_a_sentence(count: int, options: dict[str, Any], said: set[str]) -> None:
    whole = planned(cluster(count, bandwidth=FAST), samples=65536, **options)
    shown = {row.kind for row in whole.frontier}
    absent = {each.partition(" plans skipped: ")[0].lower() for each in whole.absent}
    assert shown | absent == set(KINDS)
    assert not shown & absent
    assert said <= set(whole.absent)
    assert all(each in str(whole) for each in whole.absent)


def test_a_buffer_that_is_written_says_why_there_are_no_replicas() -> None:
    whole = decided(lambda m: problem_of("in_place", m), (1, 2))
    assert any("Hybrid plans skipped: the forward writes" in each for each in whole.absent)


@cache
def data_parallel(microbatches: int, devices: int) -> Problem:
    samples = 3 * 65536
    step = Foreseen(
        model(), nn.CrossEntropyLoss(), Batch.of(*batch(samples)),
        Devices.described(cluster(devices, bandwidth=FAST)), MOMENTUM,
    )  # fmt: skip
    return step.planner(GPipe(microbatches)).problem()


def searched(run: Callable[[WholeSearch], None]) -> WholeSearch:
    """For two devices, as far as `run` goes."""
    judge = Judge(lambda m: data_parallel(m, 2), recompute=True)
    now = time.perf_counter()
    search = WholeSearch((1, 2, 4), AutoSchedule(), judge, None, SearchTime(judge, now, now + 60), (3, 6))
    run(search)
    return search


def test_one_more_device_is_one_more_replica_with_micro_batches_that_it_divides() -> None:
    search = searched(lambda search: search.try_groups((2, 4), ((0, 1),)))
    gains = gains_of(changed_clusters(search, time.perf_counter() + 60), search.judge, 8)
    more = {gain.change: gain.gain for gain in gains}
    assert more["one more device like the fastest"] > 0.4


def test_one_more_device_has_a_name_of_its_own() -> None:
    problem = data_parallel(2, 2)
    names = {each.name: "d" + " again" * i for i, each in enumerate(problem.cluster.devices)}
    devices = tuple(replace(each, name=names[each.name]) for each in problem.cluster.devices)
    links = {(names[p], names[q]): link for (p, q), link in problem.cluster.links.items()}
    named = replace(problem, cluster=replace(problem.cluster, devices=devices, links=links))
    (new,) = {each.name for each in _one_more(named).devices} - set(names.values())
    assert new == "d again 2"


def test_what_is_found_with_more_of_a_resource_is_the_answer_without_it_where_it_is_better() -> None:
    """A search that found one device alone is not what two are compared with."""
    search = searched(lambda search: search.try_groups((1,), ((0,),)))
    alone_s = search.judge.best_s
    gains = gains_of(changed_clusters(search, time.perf_counter() + 60), search.judge, 8)
    assert search.judge.best_s < 0.6 * alone_s
    more = {gain.change: gain.gain for gain in gains}
    assert 0.0 <= more["10 % more bandwidth on every link"] < 0.02
    assert more["10 % more memory on every device"] == 0.0


def test_where_the_only_plan_that_there_was_time_for_is_refused_there_is_time_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: list[Placement] = []

    def first_refused(problem: Problem, placement: Placement, *args: Any, **keys: Any) -> Any:
        refused.append(placement)
        return always_refused() if len(refused) == 1 else verified(problem, placement, *args, **keys)

    monkeypatch.setattr(whole_plan, "verified", first_refused)
    assert all(problem_of("chain", m) for m in (2, 4))
    whole = decided(lambda m: problem_of("chain", m), (2, 4), time_limit_s=1e-6)
    assert len(refused) == 2
    assert whole.placement.device_of == refused[1].device_of


@pytest.mark.parametrize("schedules", [(GPipe(4), OneFOneB(4)), (OneFOneB(4), GPipe(4))])
def test_of_plans_that_take_as_long_the_one_that_holds_less_is_best(schedules: tuple[Schedule, ...]) -> None:
    """Replicas of everything wait for nobody: the order of their micro-batches is a matter of bytes alone."""
    problem = problem_of("chain", 4, 2)
    judge = Judge(lambda _: problem, recompute=False)
    placement = staged(problem, ((0, 1),), 4)
    tried = {each.name: judge.judge("line", each, placement) for each in schedules}
    assert tried["gpipe"] is not None
    assert tried["1f1b"] is not None
    assert tried["gpipe"].iteration_s == pytest.approx(tried["1f1b"].iteration_s, rel=1e-9)
    assert max(tried["1f1b"].peak_bytes.values()) < max(tried["gpipe"].peak_bytes.values())
    assert judge.winner is tried["1f1b"]
