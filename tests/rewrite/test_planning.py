"""Rewritten problems are problems like others: costs are complete, methods place them, plans are verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.cluster.catalogue import accelerator
from netsplit.errors import ConfigError, NetSplitError, RewriteError
from netsplit.partition import Heft, Placement, SolverReport
from netsplit.partition.base import Problem
from netsplit.partition.common.priority import topological_priority
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.planning.decide import decide, verified
from netsplit.planning.explanation.parts import (
    PlacedSplit,
    parts_change,
    parts_lines,
    parts_summary,
    placed_splits,
    restated,
    split_groups,
)
from netsplit.planning.plan import Plan
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs
from netsplit.profile.predict import predicted_costs
from netsplit.program import GPipe
from netsplit.rewrite import CopyWeights, Rewrite, Split, along_samples, applied, replicate
from netsplit.rewrite.seconds import rewritten_costs
from tests.builders import costs_of, cpus
from tests.examples import tried
from tests.messages import tells
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


def test_summary_and_explanation_say_what_is_in_parts_and_where() -> None:
    problem = problem_of()
    plan = verified(problem, placed(problem, LINEAR))
    name = f"linear_2 ({problem.graph.nodes['linear_2'].module})"
    told = f"{name} in 2 parts along dimension 2: 75 % on cpu:0, 25 % on cpu:1"
    assert any(told in line for line in plan.explain().lines())
    assert f"1 operator in parts: {told.replace(' in 2 parts', '')}" in str(plan.summary())
    (split,) = plan.explain().to_dict()["splits"]
    assert [part["nodes"] for part in split["parts"]] == [("linear_2:0",), ("linear_2:1",)]
    assert [part["fraction"] for part in split["parts"]] == [0.75, 0.25]


def test_what_is_cut_along_the_samples_is_told_so() -> None:
    problem = problem_of()
    plan = verified(problem, placed(problem, along_samples(problem.graph, 2)))
    along = {split.operator: split.along for split in plan.splits}
    assert set(along.values()) == {"the samples"}
    assert all(
        line.count("along the samples")
        for line in str(plan.explain()).splitlines()
        if " parts along " in line
    )
    moved = plan.moved_from(verified(problem, placed(problem, LINEAR)))
    assert {split.along for split in moved.split} == {"the samples"}
    assert {split.along for split in verified(problem, placed(problem, LINEAR)).splits} == {"dimension 2"}


def test_every_part_of_every_split_is_where_its_nodes_are() -> None:
    """Of parts that are cut again, too."""
    problem = problem_of()
    again = (*LINEAR, Split("linear_2:0", 2, (6, 6)))
    placement = placed(problem, again)
    first, second = placed_splits(placement)
    assert [part.nodes for part in first.parts] == [("linear_2:0:0", "linear_2:0:1"), ("linear_2:1",)]
    assert [part.nodes for part in second.parts] == [("linear_2:0:0",), ("linear_2:0:1",)]
    for part in (*first.parts, *second.parts):
        assert set(part.devices) == {placement.device_of[name] for name in part.nodes}


@pytest.mark.parametrize("sizes_then", [(3, 1), (2, 1, 1)])
def test_a_cut_of_what_puts_parts_together_has_parts_of_its_own(sizes_then: tuple[int, ...]) -> None:
    problem = problem_of()
    twice = (*LINEAR, Split("linear_2", 0, sizes_then))
    once, placement = placed(problem, LINEAR), placed(problem, twice)
    first, second = placed_splits(placement)
    assert first == placed_splits(once)[0]
    assert [part.size for part in second.parts] == [*sizes_then]
    own = [name for part in second.parts for name in part.nodes]
    assert len(own) == len({*own} - set(first.parts[0].nodes + first.parts[1].nodes)) == len(sizes_then)
    graph = applied(problem.graph, twice)
    assert [graph.variables[graph.nodes[name].outputs[0]].shape[0] for name in own] == [*sizes_then]
    change = parts_change(once, placement, graph)
    assert (len(change.split), len(change.recut)) == (0, 2)
    assert parts_change(placement, placement, graph).recut == ()


def test_operators_that_are_in_parts_alike_are_told_together() -> None:
    """Every one is in one group, and what is told of the group holds of it."""
    splits = placed_splits(placed(problem_of(), HEADS))
    groups = split_groups(splits)
    assert 1 < len(groups) < len(splits)
    assert sorted(each.operator for group in groups for each in group.splits) == sorted(
        each.operator for each in splits
    )
    for group in groups:
        assert {(each.along, each.told, len(each.parts)) for each in group.splits} == {
            (group.along, group.told, group.parts)
        }
    assert len(list(parts_lines(splits))) == len(groups)
    told = parts_summary(splits, most=1)
    assert told.startswith(f"{len(splits)} operators in parts: {groups[0].named()} along {groups[0].along}: ")
    assert told.endswith(f"; and {len(splits) - len(groups[0].splits)} more")
    assert parts_summary(()) == ""


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
    cut = parts.moved_from(whole)
    assert any("now linear_2 (" in line and "in 2 parts" in line for line in cut.lines())
    assert (cut.before_s, cut.after_s) == pytest.approx((whole.objective_s, parts.objective_s))
    joined = whole.moved_from(parts)
    assert joined.joined == ("linear_2",)
    assert any("whole again: 1 node, linear_2" in line for line in joined.lines())
    assert not parts.moved_from(parts).nodes
    assert not parts.moved_from(parts).split


REWRITES = {
    "whole": lambda graph: (),
    "linear": lambda graph: LINEAR,
    "heads": lambda graph: HEADS,
    "samples": lambda graph: along_samples(graph, (3, 1)),
    "replicas": lambda graph: replicate(graph, 2),
}


@cache
def plan_of(name: str, objective: str) -> Plan:
    problem = problem_of(objective)
    return verified(problem, placed(problem, REWRITES[name](problem.graph)))


@pytest.mark.parametrize("objective", ["simulated", "max_load"])
@pytest.mark.parametrize(("old", "new"), list(permutations(REWRITES, 2)))
def test_what_was_before_is_told_of_the_plan_as_it_was(old: str, new: str, objective: str) -> None:
    """Whatever the operators were in: nodes, seconds, bytes, cut edges and parts of the objective."""
    before, after = plan_of(old, objective), plan_of(new, objective)
    diff = after.moved_from(before)
    plays = {p: q for q, p in diff.renamed.items()}
    for change in diff.devices:
        had, has = before.loads[change.device], after.loads[plays.get(change.device, change.device)]
        assert (change.nodes_before, change.before_bytes) == (had.nodes, had.nbytes)
        assert (change.nodes_after, change.after_bytes) == (has.nodes, has.nbytes)
        assert (change.before_s, change.after_s) == pytest.approx((had.compute_s, has.compute_s))
    assert (diff.before_s, diff.after_s) == pytest.approx((before.objective_s, after.objective_s))
    assert sum(part.change_s for part in diff.parts) == pytest.approx(diff.after_s - diff.before_s)
    assert {edge.variable for edge in diff.lost} <= before.problem.graph.variables.keys()
    assert diff.lost or diff.gained
    assert not after.moved_from(after).lost


@pytest.mark.parametrize(("old", "new"), list(permutations(REWRITES, 2)))
def test_every_operator_whose_parts_changed_is_told_once(old: str, new: str) -> None:
    before, after = plan_of(old, "simulated"), plan_of(new, "simulated")
    diff = after.moved_from(before)
    had, has = ({each.operator: each for each in plan.splits} for plan in (before, after))
    assert {each.operator for each in diff.split} == has.keys() - had.keys()
    assert set(diff.joined) == had.keys() - has.keys()
    alike = [
        v for v in had.keys() & has.keys() if (had[v].axis, sizes(had[v])) == (has[v].axis, sizes(has[v]))
    ]
    assert {each.operator for each in diff.recut} == (had.keys() & has.keys()) - set(alike)
    assert diff.copied == _copying(after, not_in=before)
    assert diff.uncopied == _copying(before, not_in=after)
    headline = diff.lines()[0]
    assert "nothing moved" not in headline
    assert ("copies of weights" in " ".join(diff.lines())) == ("replicas" in (old, new))


@pytest.mark.parametrize("old", ["whole", "samples"])
def test_parts_on_renamed_devices_have_the_names_of_the_first_plan(old: str) -> None:
    """As if the second plan had been made under these names."""
    before, after = plan_of(old, "simulated"), plan_of("replicas", "simulated")
    swapped = {"cpu:0": "cpu:1", "cpu:1": "cpu:0"}
    device_of = {v: swapped[device] for v, device in after.placement.device_of.items()}
    other = verified(problem_of(), replace(after.placement, device_of=device_of)).moved_from(before)
    here = after.moved_from(before)
    assert not here.renamed
    assert other.renamed == swapped
    assert other.groups == here.groups
    assert (other.split, other.recut) == (here.split, here.recut)
    assert here.split or here.recut
    assert other.arriving == here.arriving


def sizes(split: PlacedSplit) -> list[int]:
    return [part.size for part in split.parts]


def _copying(plan: Plan, not_in: Plan) -> tuple[str, ...]:
    own, other = (each.placement.rewrites for each in (plan, not_in))
    return tuple(each.node for each in own if isinstance(each, CopyWeights) and each not in other)


def test_parts_of_other_sizes_are_no_nothing() -> None:
    """Every part stays on its device, and has another share of the samples."""
    diff = plan_of("samples", "simulated").moved_from(plan_of("replicas", "simulated"))
    told = " ".join(" ".join(diff.lines()).split())
    assert tells(diff.lines()[0], f"{len(diff.recut)} operators in other parts")
    assert "in other parts: " in told
    assert "75 % on cpu:0, 25 % on cpu:1" in told
    assert "no more copies of weights" in told


def test_parts_that_are_all_on_one_device_are_told_together() -> None:
    problem = problem_of()
    spread = placed(problem, LINEAR)
    (split,) = placed_splits(replace(spread, device_of=dict.fromkeys(spread.device_of, "cpu:0")))
    assert split.told == "all 2 parts on cpu:0 (75 %, 25 %)"


def test_plans_for_other_devices_are_not_compared() -> None:
    plan = plan_of("whole", "simulated")
    problem = replace(plan.problem, cluster=cpus(3), evaluate=None)
    with pytest.raises(ConfigError, match=r"cpu:0 and cpu:1, the other .* cpu:2"):
        replace(plan, problem=problem).moved_from(plan)


def test_a_plan_restated_for_other_parts_keeps_nodes_where_their_operators_were() -> None:
    problem = problem_of()
    whole, heads = placed(problem, ()), placed(problem, HEADS)
    graph = applied(problem.graph, HEADS)
    again = restated(whole, graph)
    assert again.device_of.keys() == graph.nodes.keys()
    assert sorted(again.priority.values()) == list(range(len(graph.nodes)))
    for part in (part for split in placed_splits(heads) for part in split.parts):
        for name in part.nodes:
            assert again.device_of[name] == whole.device_of[name.partition(":")[0]]
    back = restated(heads, problem.graph)
    assert back.device_of.keys() == problem.graph.nodes.keys()
    both = problem.graph.nodes.keys() & heads.device_of.keys()
    assert all(back.device_of[name] == heads.device_of[name] for name in both)


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
@given(along=BATCHES, across=COLUMNS)
def test_sizes_of_another_batch_are_taken_along_the_samples_alone(
    along: tuple[int, ...], across: tuple[int, ...]
) -> None:
    """Of an operator, and of a part of it: whatever the method itself was content with."""
    graph = STEPS["mlp"].graph()
    problem = Workload("mlp", graph, costs_of(graph, 1e-3, 2e-3), cpus(2)).problem(
        objective="simulated", schedule=GPipe(2)
    )
    rewrites = (Split("linear", 0, along), Split("linear:1", 1, across))
    method = Answered(rewrites)
    if sum(across) != WIDE:
        with pytest.raises(
            RewriteError, match=r"'linear:1' .* along 1: sizes .* of 12: .* samples alone\)\.$"
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
            RewriteError, match=r"'linear' .* cannot be split along .*: sizes .* samples alone"
        ):
            decide(problem, Answered((split,)))
