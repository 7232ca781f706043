"""Devices in groups of fast links, and graphs in parts within these."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Link
from netsplit.partition.common.groups import MUCH, linked_groups
from netsplit.partition.common.side_by_side import side_by_side
from netsplit.rewrite import applied, replicate
from tests.builders import cpus
from tests.rewrite.models import STEPS


def servers(homes: list[int], times: float) -> Cluster:
    """A device for each, on that server; between servers a byte takes so many times as long."""
    cluster = cpus(len(homes))
    home = {device.name: s for device, s in zip(cluster.devices, homes, strict=True)}
    pairs = [(a, b) for a, b in product(home, home) if a != b]
    links = {(a, b): Link(1e-6, 1e-9 if home[a] == home[b] else times * 1e-9) for a, b in pairs}
    return replace(cluster, links=links)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.floats(MUCH, 100.0))
def test_groups_are_servers(homes: list[int], times: float) -> None:
    """Where some server has two devices, so that fast links are known; else one group of all."""
    cluster = servers(homes, times)
    known = len(set(homes)) < len(homes)
    kinds = dict.fromkeys(homes) if known else {0: None}
    wanted = [tuple(f"cpu:{i}" for i, s in enumerate(homes) if s == kind or not known) for kind in kinds]
    assert list(linked_groups(cluster)) == wanted


@pytest.mark.parametrize("name", ["mlp", "transformer", "recurrent"])
def test_parts_of_a_stage_are_on_its_devices(name: str) -> None:
    """All that is not of a weight that both stages read is on the devices of what it is made for."""
    graph = STEPS[name].graph()
    cluster = servers([0, 0, 1, 1], 10.0)
    stages = ("cpu:0", "cpu:1"), ("cpu:2", "cpu:3")
    half = len(graph) // 2
    beside = {v: stages[i >= half] for i, v in enumerate(graph.nodes)}
    for group in graph.colocated:
        beside.update(dict.fromkeys(group, beside[group[0]]))
    made = applied(graph, replicate(graph, 2))
    device_of = side_by_side(made, cluster, beside=beside)
    for v in made.nodes:
        of, _, number = v.partition(":")
        if of in beside:
            assert device_of[v] in beside[of], v
        if number in ("0", "1") and not any(v in group for group in made.colocated):
            assert device_of[v] == beside[of][int(number)]
    for group in made.colocated:
        assert len({device_of[v] for v in group}) == 1
    assert set(device_of.values()) == {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}
