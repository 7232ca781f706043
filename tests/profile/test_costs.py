"""Costs of device kinds: what speed changes of them, and what is there for a kind that has none."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from netsplit.cluster.cluster import Cluster, Device
from netsplit.graph import capture
from netsplit.partition import Problem, Single
from netsplit.planning.verify import used_bytes
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds, PartCosts
from netsplit.profile.memory import memory_of, node_state_bytes, static_model

seconds = st.floats(0.0, 1e3)
speeds = st.floats(1e-3, 1e3)


@st.composite
def device_costs(draw: st.DrawFn) -> DeviceCosts:
    names = draw(st.lists(st.sampled_from("abc"), unique=True))
    return DeviceCosts(
        {name: NodeSeconds(draw(seconds), draw(seconds), draw(seconds)) for name in names},
        step_s_per_byte=draw(seconds),
        instruction_s=draw(seconds),
        message_s=draw(st.none() | seconds),
        contention=draw(st.floats(1.0, 4.0)),
        copy_s_per_byte=draw(seconds),
        accumulate_s_per_byte=draw(seconds),
        transients={"a": NodeBytes(draw(st.integers(0, 99)), 1)},
        parts={"part": PartCosts(NodeSeconds(draw(seconds), draw(seconds), draw(seconds)), NodeBytes(2, 3))},
    )


def flat(costs: DeviceCosts) -> dict[str, float | None]:
    """Every number of seconds by its name."""
    names = [each.name for each in fields(costs) if each.name not in ("nodes", "transients", "parts")]
    rates = {name: getattr(costs, name) for name in names}
    times = {
        f"{key} of {name}": getattr(each, key)
        for name, each in [*costs.nodes.items(), *((k, part.seconds) for k, part in costs.parts.items())]
        for key in ("forward_s", "backward_s", "weight_s")
    }
    return rates | times


@given(costs=device_costs(), speed=speeds)
def test_every_second_follows_the_speed_and_contention_does_not(costs: DeviceCosts, speed: float) -> None:
    assert costs.scaled(speed).transients == costs.transients
    assert costs.scaled(speed).parts["part"].transient == NodeBytes(2, 3)
    before, after = flat(costs), flat(costs.scaled(speed))
    for key in ("contention", "host_s_per_byte"):
        assert after.pop(key) == before.pop(key)
    assert after == {key: None if each is None else each / speed for key, each in before.items()}


@given(costs=device_costs(), computing=st.integers(1, 64), processors=st.none() | st.floats(0.25, 64.0))
def test_devices_on_too_few_processors_take_turns(
    costs: DeviceCosts, computing: int, processors: float | None
) -> None:
    """n on c processors take n / c times as long, by contention more where they are several; never less.

    On a part of one they take n times as long as one device alone on it.
    """
    whole = 1.0 if processors is not None and processors < 1 else processors
    turns = 1.0 if whole is None or computing <= whole else computing / whole
    together = costs.contention if computing > 1 else 1.0
    assert costs.slowdown(computing, processors) == pytest.approx(turns * together)
    assert costs.slowdown(computing + 1, processors) >= costs.slowdown(computing, processors)


def test_frozen_parameters_and_buffers_count_once() -> None:
    body, head = nn.Linear(64, 64), nn.Linear(64, 4)
    model = nn.Sequential(body.requires_grad_(False), nn.BatchNorm1d(64, affine=False), head)
    graph = capture(model, nn.CrossEntropyLoss(), (torch.randn(8, 64), torch.arange(8) % 4))
    frozen = sum(t.nbytes for t in (*body.parameters(), *model[1].buffers()))
    trained = sum(t.nbytes for t in head.parameters())
    assert sum(node_state_bytes(graph, 1).values()) == frozen + trained
    assert sum(node_state_bytes(graph, 4).values()) == frozen + 4 * trained
    variables = sum(variable.nbytes for variable in graph.variables.values())
    need = frozen + 4 * trained + 2 * variables
    assert memory_of(graph, graph.nodes, 4) == need
    assert static_model(graph, 4).by_device(dict.fromkeys(graph.nodes, "d")) == {"d": need}
    costs = Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(1.0, 1.0)))}, alpha=4)
    problem = Problem(graph, costs, Cluster("one", (Device("d", "cpu", need),), {}))
    assert used_bytes(problem, {"it": set(graph.nodes)})["it"] == need
    assert set(Single().partition(problem).device_of.values()) == {"d"}
