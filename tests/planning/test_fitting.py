"""What fits is what lifetimes say: no accepted plan is above a capacity, and none is refused needlessly."""

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.graph import Graph, capture
from netsplit.graph.ir import Initializer, Node, Variable
from netsplit.partition import METHODS, Auto, MTopo, Placement, Problem, Single
from netsplit.partition.base import MemoryRule
from netsplit.partition.common.instance import Instance
from netsplit.partition.partitioner import Choice, Partitioner, needed_bytes
from netsplit.planning.decide import decide, verified
from netsplit.planning.plan import Plan
from netsplit.planning.workload import Workload
from netsplit.profile.memory import lifetimes_model
from netsplit.program.schedules import GPipe, OneFOneB, Schedule, SingleBatch
from netsplit.program.schedules.base import Recompute
from tests.builders import costs_of, cpus
from tests.examples import tried
from tests.nets import CASES

SCHEDULES: dict[str, Schedule] = {"single_batch": SingleBatch(), "gpipe": GPipe(4), "1f1b": OneFOneB(4)}
SEARCH = Auto(time_limit_s=0.4, starts=2)
ROOM = 2**40


@cache
def captured(case: str) -> Graph:
    own = CASES[case]
    return capture(own.fresh(), own.loss, own.batch())


def problem_of(
    case: str,
    schedule: str,
    capacity: int,
    *,
    devices: int = 2,
    memory: MemoryRule = "lifetimes",
    objective: Any = "simulated",
) -> Problem:
    graph = captured(case)
    work = Workload("net", graph, costs_of(graph, 1e-3, 1e-3, alpha=4), cpus(devices, capacity))
    return work.problem(objective=objective, schedule=SCHEDULES[schedule], memory=memory)


def under(problem: Problem, schedule: Schedule) -> Problem:
    return replace(problem, simulator=replace(problem.the_simulator, schedule=schedule))


def peak(plan: Plan) -> int:
    assert plan.problem.simulator is not None
    return max(plan.problem.simulator(plan.placement).peak_bytes.values())


@cache
def peak_of_one(case: str, schedule: str) -> int:
    return peak(decide(problem_of(case, schedule, ROOM), Single()))


def enough(refusal: InfeasibleError) -> int:
    """The bytes with which it says that there is a plan."""
    said = re.search(r"Give each device .*?(\d+) bytes\)? \(or", str(refusal))
    assert said is not None, refusal
    return int(said[1])


def test_what_is_counted_is_what_stays_for_the_backward() -> None:
    """a saves what it reads and 7 bytes beside; b is a view of a's output; c, elsewhere, saves that view."""
    nodes = (
        Node("a", "op", ("x",), ("k_a",), ("w",), saved=("x",), saved_bytes=7),
        Node("b", "op", ("k_a",), ("k_b",)),
        Node("c", "op", ("k_b",), ("k_c",), ("frozen",), saved=("k_b",)),
    )
    sizes = {"x": (10, None, "a", None), "k_a": (100, "a", "b", None), "k_b": (100, "b", "c", "k_a")}
    variables = {
        k: Variable(k, "uint8", (size,), made, (read,), requires_grad=k != "x", alias_of=root)
        for k, (size, made, read, root) in sizes.items()
    }
    variables["k_c"] = Variable("k_c", "uint8", (1000,), "c", (), requires_grad=True)
    graph = Graph(
        nodes={node.name: node for node in nodes},
        variables=variables,
        input_variables=("x",),
        output_variables=("k_c",),
        initializers={
            "w": Initializer("w", "uint8", (20,), True, True),
            "frozen": Initializer("frozen", "uint8", (30,), True, False),
        },
    )
    model = lifetimes_model(graph, alpha=4, in_flight=3)
    apart = {"a": "d0", "b": "d0", "c": "d1"}
    assert model.by_device(apart) == {"d0": 4 * 20 + 3 * (7 + 10 + 100), "d1": 30 + 3 * 100}
    assert model.total_bytes == 4 * 20 + 30 + 3 * (7 + 10 + 100)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", ["chain", "u_shape"])
def test_a_device_holds_its_peak_and_not_a_byte_more(case: str, schedule: str) -> None:
    need = peak_of_one(case, schedule)
    plan = decide(problem_of(case, schedule, need), Single())
    assert peak(plan) == need
    assert plan.placement.method == "single"
    with pytest.raises(InfeasibleError, match=rf"{need} bytes on '.* 1 bytes over its limit"):
        decide(problem_of(case, schedule, need - 1), Single())


@settings(max_examples=tried(12), deadline=None)
@given(
    case=st.sampled_from(["chain", "u_shape", "tied"]),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    devices=st.integers(2, 3),
    part=st.floats(0.3, 1.05),
)
def test_an_accepted_plan_fits_and_what_is_said_to_be_enough_is(
    case: str, schedule: str, devices: int, part: float
) -> None:
    def planned(capacity: int) -> Plan:
        return decide(problem_of(case, schedule, capacity, devices=devices), SEARCH)

    capacity = int(part * peak_of_one(case, schedule))
    try:
        plan = planned(capacity)
    except InfeasibleError as refusal:
        capacity = enough(refusal)
        plan = planned(capacity)
    assert peak(plan) <= capacity


@pytest.mark.parametrize("name", sorted(name for name, kind in METHODS.items() if kind.respects_capacity))
def test_every_method_that_heeds_capacities_heeds_peaks(name: str) -> None:
    capacity = int(0.8 * peak_of_one("u_shape", "gpipe"))
    problem = replace(problem_of("u_shape", "gpipe", capacity), time_limit_s=1.0)
    with suppress(InfeasibleError):
        assert peak(decide(problem, METHODS[name]())) <= capacity


class Claims(Single):
    """All on the first device, said to be proven; keeps what it was told that a device may hold."""

    respects_capacity = True

    def __init__(self) -> None:
        object.__setattr__(self, "told", [])

    def choose(self, problem: Problem) -> Choice:
        self.told.append(min(device.capacity_bytes for device in problem.cluster.devices))  # type: ignore[attr-defined]
        return replace(super().choose(problem), bound_s=0.0, objective_s=1.0, bound_for="latency")


@dataclass
class Unanswered(Partitioner):
    """Writes down what the devices may hold, and finds nothing."""

    cuts: bool = False
    told: list[int] = field(default_factory=list)
    name = "unanswered"

    def cuts_operators(self, problem: Problem) -> bool:
        return self.cuts

    def choose(self, problem: Problem) -> Choice:
        self.told.append(min(each.capacity_bytes for each in problem.cluster.devices))
        raise InfeasibleError("nothing fits.")


class Leads(Claims):
    """All on the first device; its portfolio has one method that finds something."""

    def portfolio(self, problem: Problem) -> list[Partitioner]:
        return [Single(), Unanswered(), MTopo()]


@pytest.mark.parametrize("recompute", [False, "auto"])
def test_where_no_answer_fits_the_portfolio_is_made_to_fit(recompute: Recompute) -> None:
    capacity = int(0.8 * peak_of_one("u_shape", "gpipe"))
    problem = under(problem_of("u_shape", "gpipe", capacity), GPipe(4, recompute))
    alone, led = decide(problem, MTopo()), decide(problem, Leads())
    assert peak(led) <= capacity
    assert led.objective_s <= alone.objective_s
    assert led.placement.method == "single"
    assert recompute or led.placement.report.notes["found_by"] == "m_topo"


def placements(problem: Problem) -> tuple[Placement, Placement]:
    """On one device, and on both: the first half of the nodes by the order, then the second."""
    alone = Single().partition(problem)
    half = len(alone.priority) // 2
    where = {name: f"cpu:{int(rank >= half)}" for name, rank in alone.priority.items()}
    return alone, replace(alone, device_of=where)


@pytest.mark.parametrize("objective", ["simulated", "max_load"])
@pytest.mark.parametrize("memory", ["static", "lifetimes"])
def test_all_that_speaks_of_bytes_counts_the_same(memory: MemoryRule, objective: str) -> None:
    problem = problem_of("chain", "gpipe", ROOM, memory=memory, objective=objective)
    instance, names = Instance.of(problem), [device.name for device in problem.cluster.devices]
    assert problem.simulator is not None
    plans = [verified(problem, placement) for placement in placements(problem)]
    for plan in plans:
        needed = needed_bytes(instance, plan.placement).tolist()
        if memory == "lifetimes":
            peaks = problem.simulator(plan.placement).peak_bytes
            assert needed == [peaks.get(name, 0) for name in names]
        else:
            assert needed == instance.used_bytes(instance.encode(plan.placement.device_of)).tolist()
        assert [plan.loads[name].nbytes for name in names] == needed
