"""What a rewrite makes is measured on workers, once for all that do the same work."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.experiment.planner import Planner
from netsplit.experiment.session import Session
from netsplit.graph import Graph, capture, initial_values
from netsplit.partition import Auto, Choice, Partitioner, Problem
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.costs import NodeBytes, NodeSeconds, PartCosts
from netsplit.profile.measure.parts import graph_of_nodes, profile_parts
from netsplit.profile.operator_keys import new_nodes, operator_key
from netsplit.program import OneFOneB
from netsplit.rewrite import Rewrite, Split, applied, rewritten_costs
from netsplit.rewrite.emitter import MOVES
from tests.builders import costs_of
from tests.nets import SGD
from tests.workers import Pools, lent_session, set_costs

LOSS = nn.CrossEntropyLoss()
ONE: tuple[Rewrite, ...] = (Split("linear", 1, (20, 20)), Split("gelu", 1, (20, 20)))
BOTH: tuple[Rewrite, ...] = (*ONE, Split("linear_1", 1, (20, 20)), Split("gelu_1", 1, (20, 20)))


def net() -> nn.Sequential:
    """Two wide layers that are alike."""
    torch.manual_seed(0)
    layers = nn.Linear(40, 40), nn.GELU(), nn.Linear(40, 40), nn.GELU(), nn.Linear(40, 4)
    return nn.Sequential(*layers)


def batch(samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(samples, 40, generator=draw), torch.randint(4, (samples,), generator=draw)


def graph_and_parts(*rewrites: Rewrite) -> tuple[Graph, Graph]:
    graph = capture(net(), LOSS, batch())
    return graph, applied(graph, rewrites)


def keys_of(*rewrites: Rewrite) -> dict[str, str]:
    before, after = graph_and_parts(*rewrites)
    return {name: operator_key(after, after.nodes[name]) for name in new_nodes(before, after)}


def test_equal_parts_of_any_layer_do_the_same_work() -> None:
    keys = keys_of(*BOTH)
    assert len({keys[name] for name in ("gelu:0", "gelu:1", "gelu_1:0", "gelu_1:1")}) == 1
    assert keys["linear_1:0"] == keys["linear_1:1"]
    assert keys["linear:0"] != keys["linear_1:0"], "the first layer gives its input no gradient"
    uneven = keys_of(Split("gelu", 1, (10, 30)))
    assert uneven["gelu:0"] != uneven["gelu:1"]
    assert uneven["gelu:0"] not in keys.values()


def test_chosen_nodes_are_measured_among_themselves() -> None:
    """Seconds and bytes of each, with what hands on pieces for them, on values of the step."""
    before, after = graph_and_parts(
        Split("linear_1", "input.1", (25, 15)), Split("cross_entropy_loss", "self.0", (4, 4))
    )
    names = list(new_nodes(before, after))
    alone = graph_of_nodes(after, names, MOVES)
    assert set(names) <= alone.nodes.keys() < after.nodes.keys()
    assert all(alone.variables[k].producer is None for k in alone.input_variables)
    assert not {"linear", "gelu"} & alone.nodes.keys()
    measured = profile_parts(
        after, batch(), initial_values(net(), after), names, MOVES, "cpu", repeats=1, rounds=1
    )
    assert measured.keys() == set(names)
    for name, each in measured.items():
        trained = any(k in after.requires_backward for k in after.nodes[name].outputs)
        assert each.seconds.forward_s > 0
        assert (each.seconds.backward_s > 0) == trained
        assert 0 <= each.seconds.weight_s <= each.seconds.backward_s


def test_what_was_measured_takes_the_estimate_s_place() -> None:
    before, after = graph_and_parts(*BOTH)
    costs = costs_of(before, 1e-3, 2e-3)
    (kind,) = costs.devices
    key = operator_key(after, after.nodes["gelu_1:1"])
    part = PartCosts(NodeSeconds(7e-3, 8e-3, 1e-3), NodeBytes(5, 6))
    known = costs.with_device(kind, parts={key: part})
    own, estimated = (rewritten_costs(each, before, after).devices[kind] for each in (known, costs))
    for name, node in after.nodes.items():
        if node.kind == "gelu":
            assert own.nodes[name] == NodeSeconds(7e-3, 8e-3, 0.0), "nothing of it is put off"
            assert own.transients[name] == part.transient
        else:
            assert own.nodes[name] == estimated.nodes[name]
    faster = known.devices[kind].scaled(2.0)
    assert faster.parts[key].seconds == NodeSeconds(3.5e-3, 4e-3, 0.5e-3)


@dataclass
class Parts(Partitioner):
    """Second parts on the second device."""

    rewrites: tuple[Rewrite, ...] = BOTH
    name = "parts"

    def choose(self, problem: Problem) -> Choice:
        graph = applied(problem.graph, self.rewrites)
        return Choice(
            {name: f"cpu:{int(name.endswith(':1'))}" for name in graph.nodes}, rewrites=self.rewrites
        )


def counted(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Operators of which parts were measured, each time."""
    said = (re.match(r"measuring (\d+) operators in parts", r.getMessage()) for r in caplog.records)
    return [int(each[1]) for each in said if each]


def test_plans_are_of_measured_parts(
    pools: Pools, unmeasured: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Once for each kind of work: a later plan, and a later session, measure only what is new."""
    caplog.set_level(logging.INFO)

    def counts() -> list[int]:
        return counted(caplog)

    def session() -> Session:
        return replace(
            lent_session(pools, tmp_path / "run"), profile="reuse", profile_cache=tmp_path / "kept"
        )

    with session() as first:
        planner = first.planner(net(), LOSS, batch(16), OneFOneB(2), SGD)
        plan = planner.plan(Parts(ONE))
        assert counts() == [len(set(keys_of(*ONE).values()))]
        (kind,) = plan.problem.costs.devices
        own = plan.problem.costs.devices[kind]
        for name, key in keys_of(*ONE).items():
            assert own.nodes[name].forward_s == own.parts[key].seconds.forward_s
            assert own.nodes[name].forward_s < 5e-4, (
                "no half of the millisecond that whole operators are said to take"
            )
        assert plan.objective_s == pytest.approx(plan.simulated[1].iteration_s)
        planner.plan(Parts(ONE))
        assert len(counts()) == 1
        planner.plan(Parts(BOTH))
        assert counts()[1:] == [len(set(keys_of(*BOTH).values()) - set(keys_of(*ONE).values()))]
    with session() as second:
        second.planner(net(), LOSS, batch(16), OneFOneB(2), SGD).plan(Parts(BOTH))
    assert len(counts()) == 2


def whole_planner(session: Session, monkeypatch: pytest.MonkeyPatch) -> Planner:
    """Decided where every operator is said to take a second, and links cost nothing."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1.0, 1.0))
    free = replace(session.spec, latency_s=1e-12, bandwidth=1e15)
    order = AutoSchedule(time_limit_s=8.0, microbatches=1, splits=True)
    return replace(session, spec=free).decided(net(), LOSS, batch(16), order, Auto(), SGD)


def known_of(planner: Planner) -> set[str]:
    assert planner.parts is not None
    (known,) = planner.parts.known.values()
    return set(known)


@pytest.mark.slow
def test_a_whole_plan_in_parts_is_of_what_was_measured(
    pools: Pools, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators that are said to take long are in parts, whose seconds are the workers', measured once."""
    caplog.set_level(logging.INFO)
    with lent_session(pools, tmp_path / "run") as session:
        planner = whole_planner(session, monkeypatch)
        whole = planner.decided
        assert whole is not None
        assert whole.frontier[0].kind == "parts"
        assert sum(counted(caplog)) == len(known_of(planner)), "equal parts once, whatever rewrite has them"
        assert 0 < whole.measuring_s < whole.seconds
        assert "s of it measuring operators in parts" in str(whole)
        before = len(counted(caplog))
        plan = planner.plan(Auto())
        assert len(counted(caplog)) == before, "what was decided is not measured again"
        assert plan.objective_s == pytest.approx(whole.iteration_s)
        own = plan.problem.costs.devices["cpu"]
        new = new_nodes(planner.graph, plan.problem.graph)
        assert new
        for name in new:
            key = operator_key(plan.problem.graph, plan.problem.graph.nodes[name])
            assert own.nodes[name].forward_s == own.parts[key].seconds.forward_s < 0.1
