"""Plans: Table 2's optima, drawn layouts element by element, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ReshardError
from netsplit.reshard import (
    ORDERS,
    STRATEGIES,
    Layout,
    Mesh,
    Network,
    ReshardPlan,
    plan_reshard,
    unit_tasks,
)
from tests.reshard.carried import between, carry_out, network_for
from tests.reshard.table_2 import TABLE_2


@pytest.mark.parametrize("number", TABLE_2)
def test_every_case_of_table_2_reaches_its_proven_optimum(number: int) -> None:
    """But for the chunk that the last of two hosts waits for (cases 7 and 8)."""
    case = TABLE_2[number]
    plan = plan_reshard(*case.layouts, case.shape, 4, case.network)
    assert len(plan.tasks) == len(unit_tasks(*case.layouts, case.shape)) == case.tasks
    assert plan.bound_s == pytest.approx(case.best)
    assert plan.seconds == pytest.approx(case.best, rel=0.01)


SPECS = {1: ["R", "S0", "S1", "S01", "S10"], 2: ["RR", "S0R", "RS1", "S0S1", "S1S0", "S10R", "RS01"]}


@st.composite
def drawn_plans(draw: st.DrawFn) -> ReshardPlan:
    """Between meshes of several rows, sizes that nothing divides, and pieces that are empty."""
    dimensions = draw(st.integers(1, 2))
    shapes = st.sampled_from([(3, 2), (2, 3), (1, 4), (2, 2), (5, 1)])
    sides = [(draw(shapes), draw(st.sampled_from(SPECS[dimensions]))) for _ in range(2)]
    layouts = between(*sides)
    shape = tuple(draw(st.sampled_from([1, 2, 3, 5, 7, 11, 13])) for _ in range(dimensions))
    network = network_for(
        layouts[0].mesh, layouts[1].mesh, inside_bandwidth=draw(st.sampled_from([7.0, 1e9]))
    )
    network = replace(network, nic_latency_s=draw(st.sampled_from([0.0, 0.5])))
    strategy = draw(st.sampled_from([*STRATEGIES, "auto"]))
    order = draw(st.sampled_from(["naive", "size_only", "greedy", "auto"]))
    return plan_reshard(
        *layouts, shape, 8, network, strategy, order, chunks=draw(st.sampled_from([1, 3, 100]))
    )


@settings(max_examples=150, deadline=None)
@given(plan=drawn_plans())
def test_every_element_arrives_where_its_layout_has_it(plan: ReshardPlan) -> None:
    carry_out(plan)


@settings(max_examples=60, deadline=None)
@given(
    specs=st.tuples(*[st.sampled_from(SPECS[2])] * 2),
    shape=st.tuples(*[st.sampled_from([3, 5, 8])] * 2),
    shift=st.integers(0, 6),
    strategy=st.sampled_from([*STRATEGIES, "auto"]),
    inside=st.sampled_from([0.5, 1.0, 10.0]),
)
def test_meshes_may_share_devices_and_hosts(
    specs: tuple[str, str], shape: tuple[int, int], shift: int, strategy: str, inside: float
) -> None:
    """What a device has already it keeps, and nothing passes a NIC for a host that has it."""
    left = Mesh(tuple(range(6)), (3, 2))
    right = Mesh(tuple((shift + 5 - i) % 12 for i in range(6)), (2, 3))
    hosts = {f"host {i}": range(3 * i, 3 * i + 3) for i in range(4)}
    network = Network.uniform(hosts, 1.0, inside)
    plan = plan_reshard(Layout(left, specs[0]), Layout(right, specs[1]), shape, 8, network, strategy)
    carry_out(plan)
    for hop in plan.hops:
        havers = {network.host(device) for device in plan.tasks[hop.task].senders}
        if network.host(hop.destination) in havers:
            assert network.host(hop.source) == network.host(hop.destination)


def test_a_device_is_sent_bytes_by_its_nic_and_inside_its_host_at_once() -> None:
    """Half of what c lacks comes from a, half from b beside it: the bound knows both ways in."""
    network = Network.uniform({"A": ["a"], "B": ["b", "c"]}, 1.0, 1.0)
    plan = plan_reshard(
        Layout(Mesh(("a", "b"), (2,)), "S0"), Layout(Mesh(("c",), (1,)), "R"), (8,), 1, network
    )
    carry_out(plan)
    assert plan.seconds == plan.bound_s == 4.0


def test_auto_is_the_best_of_all_strategies_and_orders() -> None:
    layouts = between(((3, 2), "S0R"), ((2, 3), "RS0"))
    network = replace(network_for(layouts[0].mesh, layouts[1].mesh, inside_bandwidth=3.0), nic_latency_s=5.0)
    every = [
        plan_reshard(*layouts, (7, 11), 8, network, strategy, order)
        for strategy in STRATEGIES
        for order in ORDERS
    ]
    auto = plan_reshard(*layouts, (7, 11), 8, network)
    assert auto.seconds == min(plan.seconds for plan in every)
    assert max(plan.seconds for plan in every) > 1.5 * auto.seconds
    assert min(plan.seconds for plan in every) >= auto.bound_s > 0.0


def test_several_senders_of_one_slice_share_it_where_that_is_needed() -> None:
    """Three slices and two hosts that have them all: cut in halves, each sends three."""
    source, destination = between(((2, 1), "R"), ((3, 2), "S0"))
    network = network_for(source.mesh, destination.mesh)
    whole = plan_reshard(source, destination, (12,), 1, network, order="depth_first")
    shared = plan_reshard(source, destination, (12,), 1, network)
    assert (whole.seconds, shared.seconds, shared.bound_s) == (8.0, 6.0, 6.0)
    assert (len(whole.tasks), len(shared.tasks)) == (3, 6)
    carry_out(shared)


@pytest.mark.slow
def test_plans_of_all_layouts_are_within_3_percent_of_their_bounds() -> None:
    """Between equal and unlike meshes, at 10 Gb/s; what is over 0 is chunks that further hosts wait for."""
    specs = ["RR", "S0R", "RS0", "S1R", "RS1", "S0S1", "S1S0", "S01R", "RS01", "S10R", "RS10"]
    for shapes in (((2, 4), (2, 4)), ((3, 2), (2, 3)), ((2, 4), (3, 4)), ((4, 4), (2, 4))):
        for specs_of in product(specs, specs):
            source, destination = between(*zip(shapes, specs_of, strict=True))
            network = network_for(source.mesh, destination.mesh, nic_bandwidth=1.25e9, inside_bandwidth=45e9)
            plan = plan_reshard(source, destination, (6144, 6144), 4, network)
            assert plan.seconds <= 1.03 * plan.bound_s, (shapes, specs_of)


def test_the_same_plan_comes_of_the_same_seed() -> None:
    case = TABLE_2[4]
    plans = [plan_reshard(*case.layouts, case.shape, 4, case.network, seed=3) for _ in range(2)]
    assert plans[0] == plans[1]


def test_a_summary_says_what_is_sent_and_how_long_it_takes() -> None:
    case = TABLE_2[9]
    lines = plan_reshard(*case.layouts, case.shape, 4, case.network).summary().splitlines()
    assert lines[0] == "RS0R on (2, 4) to RRS0 on (2, 4): [1024, 1024, 512], 2048 MiB"
    assert "predicted 500.000 ms, lower bound 500.000 ms" in lines[2]
    assert lines[3] == "host a0: sends 1024 MiB, receives 0 B"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"strategy": "carrier_pigeon"}, "strategy is 'carrier_pigeon': give auto, broadcast"),
        ({"order": "alphabetical"}, "order is 'alphabetical': give auto, naive"),
        ({"chunks": 0}, "0 chunks"),
        ({"itemsize": 0}, "0 bytes per element"),
        ({"shape": (4,)}, "for 2 dimensions, but the tensor has 1"),
    ],
)
def test_what_cannot_be_planned_is_said(changed: dict[str, object], sentence: str) -> None:
    source, destination = between(((2, 2), "S0R"), ((2, 2), "RS0"))
    asked = {"shape": (4, 4), "itemsize": 4, "network": network_for(source.mesh, destination.mesh)} | changed
    with pytest.raises(ReshardError, match=sentence):
        plan_reshard(source, destination, **asked)  # type: ignore[arg-type]


def test_a_device_without_a_host_is_refused() -> None:
    source, destination = between(((2, 2), "S0R"), ((2, 2), "RS0"))
    with pytest.raises(ReshardError, match="'b0' is on no host"):
        plan_reshard(source, destination, (4, 4), 4, network_for(source.mesh))
