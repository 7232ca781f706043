"""Devices in groups of fast links, and graphs in parts within these."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Link
from netsplit.partition.common.groups import MUCH, linked_groups
from tests.builders import cpus


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
