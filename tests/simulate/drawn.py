"""Random programs under every schedule, for laws that must hold of any timeline."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.objectives import SimulatedIteration
from netsplit.placement.placement import Placement, SolverReport
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program.instructions import Program
from netsplit.program.schedules import (
    ZBH1,
    ZBV,
    AsyncOneFOneB,
    DualPipeV,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    OneFOneB,
    Schedule,
    Searched,
    SingleBatch,
    VHalf,
    VMin,
)  # fmt: skip
from netsplit.simulate import Timeline, simulate
from netsplit.simulate.simulate import Run
from netsplit.simulate.tasks import DeviceSeconds
from netsplit.simulate.timeline import Event
from tests.builders import compile_placed, graph_fed
from tests.nets import placements

SCHEDULES: tuple[Schedule, ...] = (
    SingleBatch(),
    SingleBatch(recompute=True, delay_weights=True),
    GPipe(1),
    GPipe(3),
    GPipe(3, recompute=True),
    GPipe(2, delay_weights=True),
    OneFOneB(4),
    OneFOneB(4, recompute=True, delay_weights=True),
    EagerOneFOneB(4),
    EagerOneFOneB(4, delay_weights="minimal"),
    Interleaved(4),
    ZBH1(4),
    ZBV(4),
    VHalf(4),
    VMin(3),
    DualPipeV(4, recompute=True),
    Searched(3),
    Searched(3, quick=True),
    AsyncOneFOneB(4),
    AsyncOneFOneB(4, update_every=2, weights="double"),
)


def chain(count: int, weights: Mapping[str, int] | None = None) -> Graph:
    names = [f"n{i}" for i in range(count)]
    return graph_fed({name: names[max(i - 1, 0) : i] for i, name in enumerate(names)}, weights)


@dataclass(frozen=True, repr=False)
class Drawn:
    """A compiled and simulated program, and what it was made of."""

    problem: Problem = field(repr=False)
    placement: Placement = field(repr=False)
    program: Program = field(repr=False)
    timeline: Timeline = field(repr=False)

    def __repr__(self) -> str:
        return self.program.show()

    @property
    def cluster(self) -> Cluster:
        return self.problem.cluster

    @property
    def costs(self) -> Costs:
        return self.problem.costs


@st.composite
def programs(
    draw: st.DrawFn,
    schedules: Sequence[Schedule] = SCHEDULES,
    disturbed: bool | None = None,
    replicated: bool | None = None,
) -> Drawn:
    """Any DAG on one to four devices named cpu:*, with random seconds, links and overheads.

    Args:
        disturbed: whether computations slow one another; None: drawn.
        replicated: whether the first device's segments have two replicas; None: drawn.
    """
    rng = random.Random(draw(st.integers(0, 2**32)))
    feeders: dict[str, list[str]] = {}
    for n in range(draw(st.integers(2, 9))):
        feeders[f"n{n}"] = rng.sample(list(feeders), rng.randint(0, min(3, n)))
    read = {u for feeds in feeders.values() for u in feeds}
    feeders["loss"] = [name for name in feeders if name not in read]
    graph = graph_fed(feeders, {name: rng.randint(1, 9) for name in feeders})
    count = draw(st.integers(1, 4))
    device_of, priority = draw(placements(graph, count))
    schedule = draw(st.sampled_from(schedules))
    twins = draw(st.booleans()) if replicated is None else replicated
    twins = twins and schedule.microbatches > 1 and getattr(schedule, "weights", "") != "double"
    names = [f"cpu:{rank}" for rank in range(count + twins)]
    first = device_of["n0"]
    replicas = {first: (first, names[-1])} if twins else {}
    uneven = twins and schedule.update_every is None and rng.random() < 0.5
    turns = {first: (*rng.choices([names[-1], first], k=rng.randint(0, 3)), names[-1], first)}
    disturbs = draw(st.booleans()) if disturbed is None else disturbed
    processors = rng.choice([None, 1.0, 1.5, 2.0]) if disturbs else None
    devices = tuple(
        Device(
            name,
            rng.choice(["slow", "fast"]),
            2**40,
            host=rng.choice(["here", "here", "there", None]),
            processors=processors,
        )
        for name in names
    )
    links = {(p, q): Link(rng.random(), rng.random() / 16) for p in names for q in names if p != q}
    costs = drawn_costs(graph, rng)
    if disturbs:
        costs = costs.with_device("slow", contention=1 + rng.random())
        costs = costs.with_device("fast", copy_s_per_byte=rng.random() / 20)
    cluster = Cluster("drawn", devices, links)
    problem = Problem(graph, costs, cluster, objective=SimulatedIteration())
    placement = Placement("drawn", device_of, priority, SolverReport("heuristic", 0.0))
    program = compile_placed(
        graph, device_of, priority, cluster, schedule, replicas=replicas, turns=turns if uneven else {},
        shared_norm=schedule.update_every is None and rng.random() < 0.3,
        costs=costs if schedule.timed else None,
    )  # fmt: skip
    return Drawn(problem, placement, program, simulate(program, cluster, costs))


def drawn_costs(graph: Graph, rng: random.Random) -> Costs:
    seconds: dict[str, dict[str, NodeSeconds]] = {}
    for kind in ("slow", "fast"):
        seconds[kind] = {}
        for name in graph.nodes:
            back = rng.random()
            seconds[kind][name] = NodeSeconds(rng.random(), back, back * rng.choice([0.0, 0.5]))
    slow = DeviceCosts(seconds["slow"], 0.1, 0.01, message_s=0.02 if rng.random() < 0.5 else None)
    return Costs({"slow": slow, "fast": DeviceCosts(seconds["fast"], 0.01)}, 3)


def assert_engines_agree(drawn: Drawn) -> None:
    """The engine for undisturbed devices and the one for all: the same events and clocks, bit for bit."""
    plain, runs = DeviceSeconds.of, list[Run]()
    for slowed in (False, True):
        with patch.object(DeviceSeconds, "of", lambda *args, each=slowed: plain(*args)._replace(slowed=each)):
            runs.append(Run(drawn.program, drawn.cluster, drawn.costs))
    first, second = (sorted(run.events, key=_order) for run in runs)
    assert first == second
    assert runs[0].iteration_s == runs[1].iteration_s


def _order(event: Event) -> tuple[object, ...]:
    return (event.device, event.start_s, event.end_s, event.kind, event.name, event.microbatch)
