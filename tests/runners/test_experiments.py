"""Every experiment that compares methods, shrunk, as a person would start it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UP_TO_S = 400
SMALL = {
    "amoebanet_d": "amoebanet_d_small",
    "wide_resnet152": "wide_resnet152_small",
    "unet_3_32": "unet_small",
    "unet": "unet_classic_small",
    "deeplab_v3": "deeplab_v3_small",
}
PLAIN = ("amoebanet_d", "wide_resnet152", "wide_resnet152_bottleneck", "unet", "deeplab_v3")
TABLES = {
    "table_6_4": PLAIN,
    "table_6_4_chosen": (*PLAIN, "amoebanet_d_312"),
}  # fmt: skip


def shrunk(cases: tuple[str, ...]) -> list[str]:
    """Overrides with which every case is small, and none like another."""
    changes = ["partitioner=[m_topo,netsplit]"]
    for number, case in enumerate(cases):
        kind = next(name for name in SMALL if case.startswith(name))
        classes = 10 if kind in ("amoebanet_d", "wide_resnet152") else 2
        changes += [
            f"model@cases.{case}.model={SMALL[kind]}",
            f"cases.{case}.dataset.num_classes={classes}",
            f"cases.{case}.dataset.shape=[3,64,64]",
            f"cases.{case}.batch_size={2 + 2 * number}",
            # Those of the thesis are of its own sizes, and are left out here.
            f"published.{case}.m_topo=41.25",
            f"published.{case}.netsplit=41.83",
        ]
        changes += [f"cases.{case}.model.base_channels=4"] if case == "unet_3_32" else []
    return changes


def run(folder: Path, experiment: str, *overrides: str) -> str:
    command = [
        sys.executable, "-m", "runners.compare", f"experiment={experiment}", f"hydra.run.dir={folder}",
        "tracking=none", *overrides,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=folder.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=UP_TO_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def lines(folder: Path) -> list[dict[str, str]]:
    with (folder / "cases.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_the_throughputs_of_the_thesis_stand_beside_ours(name: str, tmp_path: Path) -> None:
    cases = TABLES[name]
    said = run(tmp_path / name, name, *shrunk(cases))
    rows = lines(tmp_path / name)
    assert len(rows) == len(cases) * 2
    for line in rows:
        size = 2 + 2 * cases.index(line["case"])
        assert float(line["samples_per_s"]) == pytest.approx(size / float(line["predicted_s"]))
        ours, theirs = float(line["samples_per_s"]), float(line["published"])
        assert float(line["difference"]) == pytest.approx(ours / theirs - 1)
        assert line["status"] in ("heuristic", "optimal")
        assert (line["gap"] != "") == (line["method"] == "netsplit")
    assert (tmp_path / name / "cases.png").stat().st_size > 1000
    assert "41.83" in said
    assert "Kendall" in said
    table = (tmp_path / name / "cases.md").read_text()
    assert all(f"| {case} | 2 |" in table for case in cases)


@pytest.mark.slow
def test_convergence_trains_both_ways_from_the_same_start(tmp_path: Path) -> None:
    run(tmp_path / "convergence", "convergence", "epochs=1", "dataset.limit=128")
    folder = tmp_path / "convergence"
    table = (folder / "comparison.md").read_text()
    assert "netsplit" in table
    assert "ddp" in table
    assert (folder / "training.png").stat().st_size > 1000
    where = json.loads((folder / "netsplit" / "placement.json").read_text())["device_of"]
    assert len(set(where.values())) == 2, "what does not split is no comparison with data parallelism"
