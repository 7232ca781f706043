"""`auto` with operators in parts: where that takes less, or nothing fits without; else not."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

import pytest
import torch
from torch import nn

from netsplit.cluster.cluster import Link
from netsplit.errors import InfeasibleError
from netsplit.graph import Graph, capture
from netsplit.partition import Auto, Balanced, PipeDream, Problem, Unity
from netsplit.partition.base import MemoryRule
from netsplit.partition.methods.unity.unity import UnitySearch
from netsplit.planning.decide import decide
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe, Schedule
from netsplit.rewrite import OperatorTasks
from netsplit.settings import ObjectiveName
from tests.builders import cpus
from tests.partition.meters import SlowParts

pytestmark = pytest.mark.usefixtures("few_moves")
SEARCH = Auto(time_limit_s=3.0, starts=2)
IN_PARTS = replace(SEARCH, splits=True)
ROOMY = 2**40


def wide(hidden: int = 512) -> Graph:
    model = nn.Sequential(nn.Linear(16, hidden), nn.GELU(), nn.Linear(hidden, 4))
    return capture(model, nn.CrossEntropyLoss(), (torch.randn(8, 16), torch.randint(4, (8,))))


def work(seconds: float, kinds: tuple[float, ...] = (1.0,)) -> Workload:
    """The wide layers take so many seconds each way; by kinds of devices, which are so many times as fast."""
    graph = wide()
    costs = {}
    for speed in kinds:
        each = {
            v: NodeSeconds(*((seconds if node.initializers else 1e-6) / speed,) * 2)
            for v, node in graph.nodes.items()
        }
        costs[f"x{speed:g}"] = DeviceCosts(each, accumulate_s_per_byte=1e-12)
    return Workload("wide", graph, Costs(costs, 2), None)


def problem_of(
    seconds: float,
    capacity: int = ROOMY,
    schedule: Schedule | None = None,
    kinds: tuple[float, ...] = (1.0,),
    objective: ObjectiveName = "latency",
) -> Problem:
    devices = cpus(2, capacity)
    named = [f"x{kinds[p % len(kinds)]:g}" for p in range(2)]
    given = tuple(replace(device, kind=kind) for device, kind in zip(devices.devices, named, strict=True))
    if schedule is not None:
        objective = "simulated"
    memory: MemoryRule = "static" if objective == "max_load" else "lifetimes"
    cluster = replace(devices, devices=given)
    return work(seconds, kinds).problem(cluster, objective, schedule=schedule, memory=memory)


def test_operators_are_in_parts_where_that_takes_less() -> None:
    problem = problem_of(1.0)
    whole, parts = decide(problem, SEARCH), decide(problem, IN_PARTS)
    assert not whole.placement.rewrites
    assert any(isinstance(each, OperatorTasks) and each.cuts for each in parts.placement.rewrites)
    assert parts.objective_s < 0.6 * whole.objective_s
    assert parts.placement.report.notes["whole_s"] == pytest.approx(whole.objective_s)
    assert len({*parts.placement.device_of.values()}) == 2


def test_what_fits_nowhere_whole_is_refused_or_in_parts() -> None:
    """Though it takes longer so."""
    layer = 4 * 512 * 16
    problem = problem_of(1e-7, 3 * layer, GPipe(2))
    with pytest.raises(
        InfeasibleError, match=r"auto finds no placement that fits on cluster 'cpu2': .*over its limit"
    ):
        decide(problem, SEARCH)
    plan = decide(problem, IN_PARTS)
    assert plan.placement.rewrites
    _, timeline = plan.simulated
    assert all(
        timeline.peak_bytes[device.name] <= device.capacity_bytes for device in problem.cluster.devices
    )


def test_parts_are_measured_before_they_win() -> None:
    """Three times what is estimated of them is more than whole operators take."""
    meter, problem = SlowParts.on(problem_of(1.0), lambda rewrites: 3.0)
    plan = decide(problem, IN_PARTS)
    assert plan.placement.rewrites == ()
    assert plan.objective_s == pytest.approx(decide(problem_of(1.0), SEARCH).objective_s)
    assert len(set(meter.asked)) == len(meter.asked) > 1, "the next ones were measured, too"
    assert plan.problem.meter is None


def test_unity_measures_what_it_answers() -> None:
    """A second device of a tenth of the speed gains less than the fifth by which parts turn out slower."""
    kinds, method = (1.0, 0.1), Unity(algebra=False)
    assert decide(problem_of(1.0, kinds=kinds), method).placement.rewrites
    _, problem = SlowParts.on(problem_of(1.0, kinds=kinds), lambda rewrites: 1.19)
    plan = decide(problem, method)
    assert plan.placement.rewrites == ()
    assert plan.placement.report.notes["foreseen_s"]["the programme"] > plan.objective_s


def on_servers(schedule: Schedule, layers: int = 4) -> Problem:
    """Wide layers on two servers of two devices, between which a byte takes a thousand times as long."""
    steps = [step for _ in range(layers) for step in (nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))]
    model = nn.Sequential(*steps, nn.Linear(64, 4))
    graph = capture(model, nn.CrossEntropyLoss(), (torch.randn(8, 64), torch.randint(4, (8,))))
    seconds = {v: NodeSeconds(*(2e-3 if node.initializers else 1e-6,) * 2) for v, node in graph.nodes.items()}
    cluster = cpus(4, ROOMY)
    names = [device.name for device in cluster.devices]
    links = {
        (a, b): Link(1e-5, 1e-9 if i // 2 == j // 2 else 1e-6)
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i != j
    }
    given = tuple(replace(device, kind="x1") for device in cluster.devices)
    costs = Costs({"x1": DeviceCosts(seconds, accumulate_s_per_byte=1e-12)}, 2)
    work = Workload("wide", graph, costs, None)
    whole = replace(cluster, devices=given, links=links)
    return work.problem(whole, "simulated", schedule=schedule, memory="lifetimes")


def test_stages_between_servers_are_in_parts_within() -> None:
    """One tensor crosses, and a pipeline takes less than either server alone, or all with whole operators."""
    problem = on_servers(GPipe(4))
    seconds: dict[str, float] = {}
    for origin, placement in Unity(algebra=False).quick(problem, lambda: inf):
        own = problem.rewritten(placement.rewrites)
        assert own.simulator is not None
        seconds[origin] = min(own.simulator(placement).iteration_s, seconds.get(origin, inf))
        if origin.endswith("stages"):
            assert servers_of(placement.device_of) == {0, 1}
            assert 0 < crossing(own.graph, placement.device_of) <= 4 * problem.graph.batch_size * 512
    whole_s = min(decide(problem, method).objective_s for method in (Balanced(), PipeDream(), SEARCH))
    staged = [seconds.pop(origin) for origin in [*seconds] if origin.endswith("stages")]
    assert min(staged) < 0.9 * min(*seconds.values(), whole_s)


def servers_of(device_of: Mapping[str, str]) -> set[int]:
    return {int(name[-1]) // 2 for name in device_of.values()}


def crossing(graph: Graph, device_of: Mapping[str, str]) -> int:
    """Bytes of what is made on one server and read on another."""
    made = (each for each in graph.variables.values() if each.producer)
    return sum(
        each.nbytes
        for each in made
        if len(servers_of({v: device_of[v] for v in (each.producer, *each.consumers) if v})) > 1
    )


def test_mappings_end_in_time() -> None:
    """What experts fix comes first; what is begun is left when its time is over, and what was there stays."""
    problem, unity = on_servers(GPipe(4)), Unity(algebra=False)
    every = [origin for origin, _ in unity.quick(problem, lambda: inf)]
    assert every[-1] == "the programme"
    assert list(unity.quick(problem, lambda: inf, ends=lambda: 0.0)) == []
    assert [origin for origin, _ in unity.quick(problem, lambda: 0.0)] == every[:1]


def test_bytes_get_no_higher_price_where_what_lacks_some_is_slow() -> None:
    problem = problem_of(1.0, 3 * 4 * 512 * 16, GPipe(2))
    eager = UnitySearch(Unity(algebra=False), problem)
    content = UnitySearch(Unity(algebra=False), problem, than_s=lambda: 1e-9)
    for search in (eager, content):
        search.programme(problem.graph, "the programme")
    assert eager.spread_s > 0 == content.spread_s
