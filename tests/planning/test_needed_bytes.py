"""Plans, explanations, differences and what-if count the bytes that say what fits, under either rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netsplit.partition import Placement, Problem, Single
from netsplit.partition.base import MemoryRule
from netsplit.partition.common.instance import Instance
from netsplit.planning.decide import verified
from netsplit.planning.needed_bytes import needed_bytes
from netsplit.planning.what_if import Change, _Scorer
from tests.planning.test_fitting import ROOM, problem_of


def placements(problem: Problem) -> tuple[Placement, Placement]:
    """On one device, and on both: the first half of the nodes by the order, then the second."""
    alone = Single().partition(problem)
    half = len(alone.priority) // 2
    where = {name: f"cpu:{int(rank >= half)}" for name, rank in alone.priority.items()}
    return alone, replace(alone, device_of=where)


def with_capacities(problem: Problem, *nbytes: int) -> Problem:
    devices = tuple(
        replace(device, capacity_bytes=size)
        for device, size in zip(problem.cluster.devices, nbytes, strict=True)
    )
    cluster = replace(problem.cluster, devices=devices)
    assert problem.evaluate is not None
    return replace(problem, cluster=cluster, evaluate=replace(problem.evaluate, cluster=cluster))  # type: ignore[type-var]


@pytest.mark.parametrize("objective", ["simulated", "max_load"])
@pytest.mark.parametrize("memory", ["static", "lifetimes"])
def test_all_that_speaks_of_bytes_counts_the_same(memory: MemoryRule, objective: str) -> None:
    problem = problem_of("chain", "gpipe", ROOM, memory=memory, objective=objective)
    instance, names = Instance.of(problem), [device.name for device in problem.cluster.devices]
    assert problem.evaluate is not None
    plans = [verified(problem, placement) for placement in placements(problem)]
    for plan in plans:
        needed = needed_bytes(instance, plan.placement).tolist()
        if memory == "lifetimes":
            peaks = problem.evaluate(plan.placement).peak_bytes
            assert needed == [peaks.get(name, 0) for name in names]
        else:
            assert needed == instance.used_bytes(instance.encode(plan.placement.device_of)).tolist()
        explanation = plan.explain()
        assert [plan.loads[name].nbytes for name in names] == needed
        assert [use.used_bytes for use in explanation.devices] == needed
        assert ("peaks at" in "\n".join(explanation.lines())) == (memory == "lifetimes")
        tight = with_capacities(problem, *needed)
        less = [max(0, nbytes - 1) for nbytes in needed]
        assert _Scorer(tight, []).fits(None, plan.placement)
        assert not _Scorer(with_capacities(problem, *less), []).fits(None, plan.placement)
        more = Change("memory", "", tuple(names))
        assert _Scorer(with_capacities(problem, *less), [more]).fits(0, plan.placement)
    diff = plans[1].moved_from(plans[0])
    for device in diff.devices:
        source = next((q for q, p in diff.renamed.items() if p == device.device), device.device)
        assert device.before_bytes == plans[0].loads[device.device].nbytes
        assert device.after_bytes == plans[1].loads[source].nbytes
