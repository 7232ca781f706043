"""What is measured: graph files under objectives and clusters, with the values that others reached."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.captured import captured_settings
from benchmarks.setting import MIXED, Setting, described
from netsplit.cluster.described import uniform_cluster
from netsplit.errors import NetSplitError
from netsplit.formats.read import read_workload
from netsplit.partition import METHODS, MEtf, MSct, MTopo, PipeDream, StageTime
from netsplit.planning.workload import Workload

__all__ = ["SUITES", "settings_of"]

SUITES = ("max_load", "max_load_contiguous", "stages", "baechi", "latency")
"""
- max_load, max_load_contiguous: files that carry their own cluster, on that cluster;
- stages: PipeDream's files by PipeDream's formula, on the clusters that its planner was run for;
- baechi: PipeDream's files, forward only, by the makespan of Baechi's own simulator;
- latency: every file on the clusters mixed3 and mixed4: unlike devices and links, memory that binds.
"""

BAECHI = {"": "100GB", " with 1 GB a device": "1GB", " with 6 GB a device": "6GB"}
STAGES: dict[str, dict[str, Any]] = {
    "4_devices": {"devices": 4, "bandwidth": 1e9},
    "8_devices": {"devices": 8, "bandwidth": 1e9},
    "4_devices_straight": {"devices": 4, "bandwidth": 1e9},
    "16_devices_4x4": {"devices": [4, 4], "bandwidth": [12e9, 1.25e9]},
}


def settings_of(graphs: Path | None, suites: Sequence[str], captured: Sequence[str]) -> Iterator[Setting]:
    """Settings of every graph file under a folder, smaller files first, then of captured models.

    Files that are no graphs are passed over.
    """
    under = () if graphs is None else [graphs] if graphs.is_file() else graphs.rglob("*")
    files = [each for each in under if each.is_file()]
    for file in sorted(files, key=lambda each: (each.stat().st_size, each.name)):
        try:
            workload = read_workload(file)
        except NetSplitError:
            continue
        reference = _reference(file)
        for suite in suites:
            yield from _of_file(suite, file, workload, reference)
    for model in captured:
        yield from captured_settings(model)


def _of_file(suite: str, file: Path, workload: Workload, reference: dict[str, Any]) -> Iterator[Setting]:
    if suite in ("max_load", "max_load_contiguous") and workload.cluster is not None:
        contiguous = suite == "max_load_contiguous"
        known = reference.get("contiguous" if contiguous else "non_contiguous")
        yield Setting(
            suite=suite,
            title=f"{file.name}, {suite}, the file's own cluster",
            workload=workload,
            cluster=None,
            problem_keys={"objective": suite},
            methods=("auto", "netsplit_exact", "balanced", "layerwise") if contiguous else _all(),
            known={} if known is None else {"": known},
        )
    if suite == "stages" and workload.period.bound_key == StageTime.bound_key:
        yield from _stages(file, workload, reference)
    if suite == "baechi" and workload.period.bound_key == StageTime.bound_key:
        yield from _baechi(file)
    if suite == "latency":
        for name in MIXED:
            yield Setting(
                suite=suite,
                title=f"{file.name}, latency, {name}",
                workload=workload,
                cluster=described(name),
                problem_keys={"objective": "latency"},
                methods=_all(),
            )


def _all() -> tuple[str, ...]:
    return tuple(METHODS)


def _stages(file: Path, workload: Workload, reference: dict[str, Any]) -> Iterator[Setting]:
    for name, keys in STAGES.items():
        straight = name.endswith("straight")
        known = reference.get(name)
        yield Setting(
            suite="stages",
            title=f"{file.name}, slowest stage, {name}",
            workload=workload,
            cluster=uniform_cluster(capacity="1TB", name=name, **keys),
            problem_keys={"objective": "max_load"},
            methods=("pipedream",) if straight else ("pipedream", "auto"),
            partitioners={"pipedream": PipeDream(straight=straight)},
            known={} if known is None else {"": known * 1e3},
        )


def _baechi(file: Path) -> Iterator[Setting]:
    values = _reference(file, "baechi", whole=True)
    for text, capacity in BAECHI.items():
        known = values.get(f"{file.name}{text}")
        if known is None and text:
            continue
        yield Setting(
            suite="baechi",
            title=f"{file.name}{text}, makespan in Baechi's simulator",
            workload=read_workload(file, inputs="profiled"),
            cluster=uniform_cluster(4, bandwidth=1 / 0.1754e-9, latency=134e-6, capacity=capacity),
            problem_keys={"objective": "latency", "passes": "forward", "alpha": 1, "variable_copies": 1},
            methods=("m_topo", "m_etf", "m_sct"),
            partitioners={
                "m_topo": MTopo(order="breadth_first"),
                "m_etf": MEtf(memory="kept"),
                "m_sct": MSct(memory="kept"),
            },
            known=known or {},
            own_objective=True,
            unit="us",
            unit_s=1e-6,
        )


def _reference(file: Path, section: str | None = None, whole: bool = False) -> dict[str, Any]:
    """The values for a file of the nearest `reference.json` above it; empty where there is none."""
    for folder in file.resolve().parents:
        path = folder / "reference.json"
        if path.is_file():
            sections = json.loads(path.read_text())
            values: dict[str, Any] = sections.get(section or file.parent.name, {})
            return values if whole else values.get(file.name, {})
    return {}
