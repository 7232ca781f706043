"""Rewritten problems are problems like others: costs are complete, methods place them, plans are verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netsplit.cluster.catalogue import accelerator
from netsplit.errors import NetSplitError, RewriteError
from netsplit.graph.quotient import topological_priority
from netsplit.partition import Heft, Placement, SolverReport
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.planning.decide import decide, verified
from netsplit.planning.parts import PlacedSplit, parts_summary, placed_splits
from netsplit.planning.plan_change import placement_change
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs
from netsplit.profile.predict import predicted_costs
from netsplit.program import GPipe
from netsplit.rewrite import ParallelGraph, Rewrite, Split, along_samples, applied, replicate
from netsplit.rewrite.seconds import rewritten_costs
from netsplit.tracking.records import write_plan
from tests.builders import costs_of, cpus
from tests.examples import tried
from tests.rewrite.models import STEPS
from tests.rewrite.test_training import HEADS, side_by_side
from tests.runtime.equivalence.running import captured

LINEAR = (Split("linear_2", 2, (12, 4)),)


def problem_of(objective: str = "simulated") -> Problem:
    graph = captured("attention", 4)
    work = Workload("attention", graph, costs_of(graph, 1e-3, 2e-3), cpus(2))
    return work.problem(objective=objective, schedule=GPipe(2))


def test_parts_take_as_much_as_they_have_of_the_work() -> None:
    before = problem_of()
    (kind,) = before.costs.devices
    known = before.costs.with_device(kind, accumulate_s_per_byte=3e-9)
    problem = replace(before, costs=known).rewritten(LINEAR)
    costs = problem.costs.devices[kind]
    assert costs.nodes.keys() == problem.graph.nodes.keys()
    assert costs.nodes["linear_2:0"].forward_s == pytest.approx(0.75e-3)
    assert costs.nodes["linear_2:1"].backward_s == pytest.approx(0.5e-3)
    assert costs.nodes["linear_1"].forward_s == 1e-3
    # What puts the parts together has the node's name, and not its seconds: it reads and writes every byte.
    assert problem.graph.nodes["linear_2"].kind == "cat"
    moved = 2 * problem.graph.variables["linear_2"].nbytes
    assert costs.nodes["linear_2"].forward_s == pytest.approx(1e-9 * moved)


def test_any_method_places_a_rewritten_graph() -> None:
    """Its answer says what was rewritten: of the problem as it was, it is the same plan."""
    problem = problem_of().rewritten(HEADS)
    plan = decide(problem, Heft())
    assert plan.placement.rewrites == HEADS
    assert plan.placement.device_of.keys() == problem.graph.nodes.keys()
    again = verified(problem_of(), plan.placement)
    assert again.objective_s == plan.objective_s
    assert again.problem.graph is applied(again.problem.graph, HEADS)
    assert again.to_dict()["rewrites"][0] == {
        "kind": "split", "node": "linear", "axis": 2, "sizes": (4, 4), "blocks": 3,
    }  # fmt: skip


def test_a_placement_of_other_nodes_than_its_rewrites_make_is_refused() -> None:
    problem = problem_of()
    graph = applied(problem.graph, HEADS)
    order = topological_priority(graph, graph.position)
    placement = Placement("given", side_by_side(graph), order, SolverReport("heuristic", 0.0), rewrites=HEADS)
    assert verified(problem, placement).placement is placement
    with pytest.raises(NetSplitError, match="has no device"):
        verified(problem, replace(placement, rewrites=LINEAR))


def placed(problem: Problem, rewrites: tuple[Split, ...]) -> Placement:
    graph = applied(problem.graph, rewrites)
    order = topological_priority(graph, graph.position)
    return Placement("given", side_by_side(graph), order, SolverReport("heuristic", 0.0), rewrites=rewrites)


def test_the_summary_says_what_is_in_parts_and_where() -> None:
    problem = problem_of()
    plan = verified(problem, placed(problem, LINEAR))
    name = f"linear_2 ({problem.graph.nodes['linear_2'].module})"
    told = f"{name} along dimension 2: 75 % on cpu:0, 25 % on cpu:1"
    assert f"1 operator in parts: {told}" in str(plan.summary())


def test_a_run_has_the_parallel_graph(tmp_path: Path) -> None:
    problem = problem_of()
    plan = verified(problem, placed(problem, HEADS))
    write_plan(plan, tmp_path)
    parallel = ParallelGraph.from_dict(json.loads((tmp_path / "parallel_graph.json").read_text()))
    assert set(parallel.tasks(problem.graph)) == {*parallel.views}
    assert (tmp_path / "parallel_graph.txt").read_text() == f"{parallel.summary()}\n"


def test_every_part_of_every_split_is_where_its_nodes_are() -> None:
    """Holds for parts that are cut again, too."""
    problem = problem_of()
    again = (*LINEAR, Split("linear_2:0", 2, (6, 6)))
    placement = placed(problem, again)
    graph = applied(problem.graph, again)
    first, second = placed_splits(placement, graph)
    assert [part.nodes for part in first.parts] == [("linear_2:0:0", "linear_2:0:1"), ("linear_2:1",)]
    assert [part.nodes for part in second.parts] == [("linear_2:0:0",), ("linear_2:0:1",)]
    for part in (*first.parts, *second.parts):
        assert set(part.devices) == {placement.device_of[name] for name in part.nodes}
    assert parts_summary((first, second)).startswith("1 operator in parts: ")


@pytest.mark.parametrize("cut", [along_samples, replicate])
def test_the_summary_counts_operators_once_on_each_device(cut: Callable[..., tuple[Rewrite, ...]]) -> None:
    """Those that it has parts of, however many; what only moves tensors is none. Nodes are counted apart."""
    problem = problem_of()
    whole = verified(problem, placed(problem, ()))
    assert sum(load.operators for load in whole.loads.values()) == len(problem.graph)
    plan = verified(problem, placed(problem, cut(problem.graph, 4)))
    graph, where = plan.problem.graph, plan.placement.device_of
    column = [column.name for column in plan.summary().devices.columns].index("operators")
    in_parts = {each.operator for each in plan.splits}
    for name, *cells in plan.summary().devices.rows:
        nodes = [v for v in graph.nodes if where[v] == name]
        own = {v.rpartition(":")[0] for v in nodes if v.rpartition(":")[0] in in_parts and v[-1].isdecimal()}
        own |= {v for v in nodes if v in problem.graph.nodes and v not in in_parts}
        assert cells[column - 1] == plan.loads[name].operators == len(own) > 0
        assert plan.loads[name].nodes == len(nodes) >= len(own)


def test_what_moved_between_a_plan_in_parts_and_one_of_whole_operators() -> None:
    problem = problem_of()
    parts, whole = (verified(problem, placed(problem, each)) for each in (LINEAR, ()))
    cut, joined = placement_change(whole, parts), placement_change(parts, whole)
    assert any("now 1 operator in parts: linear_2 (" in line for line in cut.lines)
    assert any("no longer split: linear_2" in line for line in joined.lines)
    assert placement_change(parts, parts).moved == placement_change(parts, parts).split == 0


def sizes(split: PlacedSplit) -> list[int]:
    return [part.size for part in split.parts]


@pytest.mark.parametrize("rewrites", [HEADS, LINEAR])
@pytest.mark.parametrize("speed", [1.0, 3.0])
def test_parts_are_predicted_where_their_operators_were(rewrites: tuple[Split, ...], speed: float) -> None:
    """As the rewritten graph would be from the start: a call of a part costs what any call costs."""
    before = captured("attention", 4)
    rates = accelerator("V100-SXM2-16GB")
    assert not rates.crowded_bytes  # with which seconds of old nodes depend on the whole graph
    after = applied(before, rewrites)
    old, new = (predicted_costs(graph, {"v100": rates}, 2).devices["v100"] for graph in (before, after))
    costs = Costs({"v100": old.scaled(speed)}, 2, predicted=True)
    (known,) = rewritten_costs(costs, before, after).devices.values()
    assert known.nodes.keys() == new.nodes.keys()
    made = after.nodes.keys() - before.nodes.keys()
    for name in made:
        assert known.nodes[name].total_s == pytest.approx(new.nodes[name].total_s / speed)
    assert sum(known.nodes[name].forward_s > 0 for name in made) >= len(rewrites)


@dataclass
class Answered(Partitioner):
    """Rewrites that were made up elsewhere, on one device."""

    name = "answered"
    rewrites: tuple[Rewrite, ...] = ()

    def choose(self, problem: Problem) -> Choice:
        graph = applied(problem.graph, self.rewrites, scaled=True)
        return Choice(dict.fromkeys(graph.nodes, "cpu:0"), rewrites=self.rewrites)


WIDE = 12  # what the first layer of the model "mlp" makes of 8 samples
BATCHES = st.lists(st.integers(2, 5), min_size=2, max_size=3).map(tuple)  # of which 8 leaves no part empty
COLUMNS = st.one_of(
    st.integers(1, WIDE - 1).map(lambda size: (size, WIDE - size)),
    st.lists(st.integers(1, 9), min_size=2, max_size=3).map(tuple),
)


@settings(max_examples=tried(40), deadline=None)
@example(along=(2, 2), across=(6, 1, 9))
@given(along=BATCHES, across=COLUMNS)
def test_sizes_of_another_batch_are_taken_along_the_samples_alone(
    along: tuple[int, ...], across: tuple[int, ...]
) -> None:
    """Checks an operator, and a part of it, whatever the method itself was content with."""
    graph = STEPS["mlp"].graph()
    problem = Workload("mlp", graph, costs_of(graph, 1e-3, 2e-3), cpus(2)).problem(
        objective="simulated", schedule=GPipe(2)
    )
    rewrites = (Split("linear", 0, along), Split("linear:1", 1, across))
    method = Answered(rewrites)
    if sum(across) != WIDE:
        with pytest.raises(
            RewriteError,
            match=r"'linear:1' .* along 1: sizes .* of 12( leave a part empty|: .*along the samples).*\.$",
        ):
            method.partition(problem)
        return
    assert method.partition(problem).device_of.keys() == applied(graph, rewrites, scaled=True).nodes.keys()


@pytest.mark.parametrize("sizes", [(5, 5), (6, 7)])
def test_a_method_whose_sizes_do_not_add_up_is_refused(sizes: tuple[int, ...]) -> None:
    """Along what is summed over; of columns in blocks."""
    graph = STEPS["mlp"].graph()
    work = Workload("mlp", graph, costs_of(graph, 1e-3, 2e-3), cpus(2))
    problem = work.problem(objective="simulated", schedule=GPipe(2))
    for split in (
        Split("linear", "input.1", sizes),
        Split("linear", 1, sizes, 2),
        Split("linear", 0, sizes, 2),
    ):
        with pytest.raises(
            RewriteError, match=r"'linear' .* cannot be split along .*: sizes .* only along the samples"
        ):
            decide(problem, Answered((split,)))
