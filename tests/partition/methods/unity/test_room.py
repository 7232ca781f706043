"""Unity where devices have little room: bytes of copies, the nearest plan, and what may be cut."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from netsplit.errors import InfeasibleError
from netsplit.layout import Layout, Mesh
from netsplit.partition import Unity
from netsplit.partition.base import Problem
from netsplit.partition.methods.unity.choices import Machines
from netsplit.partition.methods.unity.movement import Movement
from netsplit.partition.methods.unity.unity import UnitySearch
from netsplit.planning.fitting import fitted, nearest_fill
from netsplit.rewrite import OperatorTasks
from netsplit.rewrite.records import Split
from tests.partition.methods.unity.test_joint import problem_of


def with_room(problem: Problem, room: int) -> Problem:
    """With devices of so many bytes."""
    devices = tuple(replace(each, capacity_bytes=room) for each in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=devices)
    return replace(problem, cluster=cluster, simulator=replace(problem.the_simulator, cluster=cluster))


def test_what_a_device_has_not_as_it_reads_it_takes_bytes() -> None:
    """Columns of what is whole on the first device: the second gets its half, the first has it."""
    problem = problem_of("two products", (1.0, 1.0))
    machines = Machines.of(problem)
    movement = Movement(machines, problem.costs)
    whole = Layout(Mesh((0,), (1,)), "RR")
    rows, columns = (Layout(Mesh((0, 1), (2,)), spec, {0: (4, 4)}) for spec in ("S0R", "RS0"))
    copies = movement.copies([whole, columns], [rows, columns], (8, 8), 4).tolist()
    assert copies == [[[0, 128], [0, 128]], [[128, 128], [0, 0]]]


def alone_bytes(problem: Problem) -> int:
    """The peak of one device that has all."""
    first = next(UnitySearch(Unity(), problem).others()).placement
    return max(problem.the_simulator(first).peak_bytes.values())


def test_a_refusal_names_the_nearest_plan_that_was_judged() -> None:
    """And not the nearest of whole operators."""
    problem, method = problem_of("towers", (1.0, 1.0)), Unity(algebra=False)
    tight = with_room(problem, int(0.4 * alone_bytes(problem)))
    with pytest.raises(InfeasibleError) as refused:
        fitted(tight, method)
    search = UnitySearch(method, tight)
    least = min(each.missing for each in (*search.programmes(), *search.others()))
    (said,) = re.findall(r"\((\d+) bytes\) over its limit", str(refused.value))
    peaks = tight.the_simulator(nearest_fill(tight)).peak_bytes
    assert int(said) <= least < max(peaks.values()) - tight.cluster.devices[0].capacity_bytes


def test_no_operator_is_cut_along_what_dimensions_leave_out() -> None:
    """Where only cuts fit, the refusal says which are left out."""
    problem = problem_of("towers", (1.0, 1.0))
    tight = with_room(problem, int(0.6 * alone_bytes(problem)))
    assert any(isinstance(each, OperatorTasks) and each.cuts for each in Unity().choose(tight).rewrites)
    method = Unity(algebra=False, dimensions=[])
    judged = [*UnitySearch(method, tight).others()]
    assert not any(isinstance(own, Split) for each in judged for own in each.placement.rewrites)
    with pytest.raises(InfeasibleError, match="columns, reduction, heads, copies, which unity's dimensions"):
        fitted(tight, method)
