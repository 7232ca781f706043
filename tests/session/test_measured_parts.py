"""What a rewrite makes is measured on workers, once for all that do the same work."""

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.graph import Graph, capture
from netsplit.partition import Auto, Choice, Partitioner, Problem
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.operator_keys import new_nodes, operator_key
from netsplit.program import OneFOneB
from netsplit.rewrite import Rewrite, Split, applied
from netsplit.session.session import Session
from netsplit.training.options import Training
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
    said = (re.match(r"measuring (\d+) split operators", r.getMessage()) for r in caplog.records)
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
        step = first.step(net(), LOSS, batch(16), Training(SGD))
        problem = first.problem(step, OneFOneB(2))
        plan = step.plan(problem, Parts(ONE))
        assert counts() == [len(set(keys_of(*ONE).values()))]
        (kind,) = plan.problem.costs.devices
        own = plan.problem.costs.devices[kind]
        for name, key in keys_of(*ONE).items():
            assert own.nodes[name].forward_s == own.parts[key].seconds.forward_s
            assert own.nodes[name].forward_s < 5e-4, (
                "no half of the millisecond that whole operators are said to take"
            )
        assert plan.objective_s == pytest.approx(plan.simulated[1].iteration_s)
        step.plan(problem, Parts(ONE))
        assert len(counts()) == 1
        step.plan(problem, Parts(BOTH))
        assert counts()[1:] == [len(set(keys_of(*BOTH).values()) - set(keys_of(*ONE).values()))]
    with session() as second:
        step = second.step(net(), LOSS, batch(16), Training(SGD))
        second.plan(step, OneFOneB(2), Parts(BOTH))
    assert len(counts()) == 2


def whole_planned(session: Session, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Decided where every operator is said to take a second, and links cost nothing."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1.0, 1.0))
    free = replace(session.spec, latency_s=1e-12, bandwidth=1e15)
    order = AutoSchedule(time_limit_s=8.0, microbatches=1, splits=True)
    linked = replace(session, spec=free)
    return linked.plan(linked.step(net(), LOSS, batch(16), Training(SGD)), order, Auto())


@pytest.mark.slow
def test_a_whole_plan_in_parts_is_of_what_was_measured(
    pools: Pools, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators that are said to take long are in parts, whose seconds are the workers', measured once."""
    caplog.set_level(logging.INFO)
    with lent_session(pools, tmp_path / "run") as session:
        plan = whole_planned(session, monkeypatch)
        assert plan.choice.frontier[0].kind == "parts"
        (known,) = {kind: each.parts for kind, each in plan.asked.costs.devices.items()}.values()
        assert sum(counted(caplog)) == len(known), "equal parts once, whatever rewrite has them"
        assert 0 < plan.choice.measuring_s < plan.seconds
        assert "s of it measuring operators in parts" in str(plan)
        assert plan.samples_per_s == pytest.approx(plan.choice.frontier[0].samples_per_s)
        own = plan.problem.costs.devices["cpu"]
        new = new_nodes(plan.asked.graph, plan.problem.graph)
        assert new
        for name in new:
            key = operator_key(plan.problem.graph, plan.problem.graph.nodes[name])
            assert own.nodes[name].forward_s == own.parts[key].seconds.forward_s < 0.1
