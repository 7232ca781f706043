"""Placements from what comparisons and `runners.partition` have written."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.errors import ConfigError
from netsplit.formats.placements import read_placement
from netsplit.partition import Problem, RoundRobin
from tests.simulate.drawn import chain, drawn_costs

NAMES = ("a", "b")


@pytest.fixture
def problem() -> Problem:
    graph = chain(4, {f"n{i}": 4 for i in range(4)})
    links = {(p, q): Link(0.01, 0.001) for p in NAMES for q in NAMES if p != q}
    cluster = Cluster("pair", tuple(Device(name, "slow", 1) for name in NAMES), links)
    return Problem(graph, drawn_costs(graph, random.Random(1)), cluster)


def written(path: Path, problem: Problem, **changes: Any) -> Path:
    path.write_text(json.dumps(RoundRobin().partition(problem).to_dict() | changes))
    return path


def test_a_placement_comes_back_though_it_does_not_fit(tmp_path: Path, problem: Problem) -> None:
    made = RoundRobin().partition(problem)
    placement = read_placement(written(tmp_path / "placement.json", problem), problem)
    assert placement == replace(made, report=placement.report)
    nodes = list(problem.graph.nodes)
    listed = written(tmp_path / "result.json", problem, priority=nodes)
    assert read_placement(listed, problem).priority == {node: i for i, node in enumerate(nodes)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device_of": {"n0": "a"}}, "another graph: node 'n1'"),
        ({"device_of": {f"n{i}": "c" for i in range(4)}}, "device 'c': the cluster has a, b"),
        ({"cuts": ["n7"]}, "cut 'n7'"),
        ({"priority": {f"n{i}": -i for i in range(4)}}, "is not valid"),
    ],
)
def test_what_is_no_placement_of_the_problem_is_refused(
    tmp_path: Path, problem: Problem, changes: dict[str, Any], words: str
) -> None:
    path = written(tmp_path / "placement.json", problem, **changes)
    with pytest.raises(ConfigError, match=words):
        read_placement(path, problem)
