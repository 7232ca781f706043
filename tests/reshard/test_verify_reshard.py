"""The verifier notices what is wrong with a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from netsplit.errors import ReshardError
from netsplit.reshard import Layout, ReshardPlan, plan_reshard, verify_reshard
from tests.reshard.carried import between, mesh_of, network_for


def good(strategy: str = "broadcast") -> ReshardPlan:
    layouts = between(((2, 2), "S0R"), ((2, 2), "RR"))
    network = network_for(*(layout.mesh for layout in layouts), inside_bandwidth=10.0)
    return plan_reshard(*layouts, (4, 6), 8, network, strategy, chunks=3)


def without(plan: ReshardPlan, index: int) -> ReshardPlan:
    """Without one hop; indices of those after it move."""
    hops = [
        replace(hop, after=tuple(i - (i > index) for i in hop.after if i != index))
        for i, hop in enumerate(plan.hops)
        if i != index
    ]
    return replace(plan, hops=tuple(hops), times=plan.times[:index] + plan.times[index + 1 :])


def changed(plan: ReshardPlan, index: int, **what: object) -> ReshardPlan:
    hops = list(plan.hops)
    hops[index] = replace(hops[index], **what)  # type: ignore[arg-type]
    return replace(plan, hops=tuple(hops))


def at_once(plan: ReshardPlan) -> ReshardPlan:
    return replace(plan, times=tuple((0.0, end - start) for start, end in plan.times))


def later(plan: ReshardPlan) -> ReshardPlan:
    return replace(plan, times=tuple((start, 2 * end) for start, end in plan.times))


LAST = len(good().hops) - 1
WRONG: dict[str, tuple[Callable[[ReshardPlan], ReshardPlan], str]] = {
    "lost": (lambda plan: without(plan, LAST), "does not get each element|is not its piece"),
    "twice": (
        lambda plan: replace(plan, hops=(*plan.hops, plan.hops[0]), times=(*plan.times, plan.times[-1])),
        "does not get each element|overlap|lasts",
    ),
    "not waited for": (lambda plan: changed(plan, LAST, after=()), "its source does not have"),
    "from nobody": (lambda plan: changed(plan, 0, source="b3"), "its source does not have"),
    "to a stranger": (lambda plan: changed(plan, LAST, destination="a0"), "in the destination|overlap|lasts"),
    "beyond the slice": (lambda plan: changed(plan, 0, stop=10_000), "no elements of its slice"),
    "forward": (lambda plan: changed(plan, 0, after=(LAST,)), "does not come before it"),
    "all at once": (at_once, "before what it waits for|overlap"),
    "slower than its bytes": (later, "its bytes take"),
    "below the bound": (lambda plan: replace(plan, bound_s=2 * plan.seconds), "below the bound"),
    "no times": (lambda plan: replace(plan, times=()), "but 0 times"),
    "another destination": (
        lambda plan: replace(plan, destination=Layout(mesh_of("b", (2, 2)), "RS0")),
        "is not its piece",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_refused(name: str) -> None:
    spoil, sentence = WRONG[name]
    verify_reshard(good())
    with pytest.raises(ReshardError, match=sentence):
        verify_reshard(spoil(good()))


def test_a_slice_that_is_kept_must_be_there() -> None:
    layout = Layout(mesh_of("a", (2, 2)), "S0R")
    plan = plan_reshard(layout, layout, (4, 3), 4, network_for(layout.mesh))
    tasks = tuple(replace(task, keepers=tuple(reversed(layout.mesh.devices))) for task in plan.tasks)
    with pytest.raises(ReshardError, match="keeps slice 0, which it does not have"):
        verify_reshard(replace(plan, tasks=tasks))
