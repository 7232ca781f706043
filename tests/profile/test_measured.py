"""Profiles on disk: reused when nothing changed, ignored when they cannot be trusted."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netsplit.profile.costs import DeviceCosts, NodeBytes, NodeSeconds, PartCosts
from netsplit.profile.measure.clock import trivial_step
from netsplit.profile.measured import Measured, ProfileCache, profile_digest

COSTS = DeviceCosts(
    {"mul": NodeSeconds(1e-6, 2e-6, 5e-7)}, 1e-9, 3e-5, 1e-4, 1.1, 2e-10, 1e-4, {"mul": NodeBytes(64, 128)}
)
MEASURED = Measured(COSTS, 0.02, 5e-3)
WORKER = {"kind": "cpu", "host": "here", "threads": 1, "torch": "2"}


def changed(data: dict[str, Any], **costs: object) -> str:
    return json.dumps(data | {"costs": data["costs"] | costs})


@pytest.mark.parametrize("message_s", [1e-4, 0.0, None])
def test_what_is_put_is_what_is_got(tmp_path: Path, message_s: float | None) -> None:
    cache = ProfileCache(tmp_path / "new" / "folder")
    assert cache.get("a", Measured) is None
    measured = replace(MEASURED, costs=replace(COSTS, message_s=message_s))
    turns, parts = {4: 0.5, 16: 1.25}, {"[1]": PartCosts(NodeSeconds(1.0, 2.0))}
    for digest, value in (("a", measured), ("sizes-a", turns), ("parts-a", parts)):
        cache.put(digest, value)
    assert cache.get("a", Measured) == measured
    assert cache.get("sizes-a", dict[int, float]) == turns
    assert cache.get("parts-a", dict[str, PartCosts]) == parts
    assert cache.get("b", Measured) is None
    assert ProfileCache(cache.folder, refresh=True).get("a", Measured) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: "{",
        lambda data: json.dumps(data | {"costs": {}}),
        lambda data: changed(data, nodes={"mul": [1.0, None, 0.0]}),
        lambda data: changed(data, transients={"mul": [1, 2, 3]}),
    ],
)
def test_a_broken_file_is_ignored_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: object
) -> None:
    cache = ProfileCache(tmp_path)
    cache.put("a", MEASURED)
    path = tmp_path / "a.json"
    path.write_text(change(json.loads(path.read_text())))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert cache.get("a", Measured) is None
    assert "a.json" in caplog.text
    assert len(caplog.records) == 1


def test_the_digest_depends_on_what_seconds_depend_on() -> None:
    graph = trivial_step()
    mul, y = graph.nodes["mul"], graph.variables["y"]
    base = profile_digest(graph, WORKER, optimizer="sgd", in_flight=1)
    moved = replace(graph, nodes={"mul": replace(mul, source="elsewhere.py:3")})
    assert profile_digest(moved, WORKER, optimizer="sgd", in_flight=1) == base
    others = [
        profile_digest(replace(graph, nodes={"mul": replace(mul, op="aten.add.Tensor")}), WORKER,
                       optimizer="sgd", in_flight=1),
        profile_digest(replace(graph, variables=graph.variables | {"y": replace(y, shape=(2,))}), WORKER,
                       optimizer="sgd", in_flight=1),
        profile_digest(replace(graph, variables=graph.variables | {"y": replace(y, dtype="float64")}), WORKER,
                       optimizer="sgd", in_flight=1),
        profile_digest(graph, WORKER | {"host": "there"}, optimizer="sgd", in_flight=1),
        profile_digest(graph, WORKER | {"torch": "3"}, optimizer="sgd", in_flight=1),
        profile_digest(graph, WORKER, optimizer="adam", in_flight=1),
        profile_digest(graph, WORKER, optimizer="sgd", in_flight=2),
        profile_digest(graph, WORKER, optimizer="sgd", in_flight=1, links=(1e-5, 1e9)),
        profile_digest(graph, WORKER, optimizer="sgd", in_flight=1, links=(1e-5, 2e9)),
    ]  # fmt: skip
    assert len({base, *others}) == len(others) + 1
