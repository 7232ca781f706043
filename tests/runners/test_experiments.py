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
UP_TO_S = 240
TINY = ("model=amoebanet_d_small", "model.num_filters=8", "dataset.shape=[3,32,32]", "dataset.num_classes=10")
CASES = ("amoebanet_d", "amoebanet_d_312", "wide_resnet152", "unet", "deeplab_v3")
TABLE = (
    "partitioner=[m_topo,netsplit]",
    "model@cases.amoebanet_d.model=amoebanet_d_small",
    "cases.amoebanet_d.model.num_filters=8",
    "model@cases.amoebanet_d_312.model=amoebanet_d_small",
    "cases.amoebanet_d_312.model.num_filters=16",
    "cases.amoebanet_d_312.dataset.num_classes=10",
    "model@cases.wide_resnet152.model=wide_resnet152_small",
    "model@cases.unet.model=unet_classic_small",
    "model@cases.deeplab_v3.model=deeplab_v3_small",
    "cases.amoebanet_d.dataset.num_classes=10",
    "cases.wide_resnet152.dataset.num_classes=10",
    "cases.unet.dataset.num_classes=2",
    "cases.deeplab_v3.dataset.num_classes=2",
    *(f"cases.{case}.{change}" for case in CASES for change in ("batch_size=4", "dataset.shape=[3,64,64]")),
    # Those of the thesis are of its own sizes, and are left out here.
    *(f"published.{case}.{figure}" for case in CASES for figure in ("m_topo=41.25", "netsplit=41.83")),
)
SHORT_AUTO = ("partitioner.auto.time_limit_s=1", "partitioner.auto.starts=1")
ABLATION = (
    *TINY,
    *SHORT_AUTO,
    "batch_size=4",
    "partitioner.netsplit_exclusive.time_limit_s=1",
    "partitioner.netsplit_exclusive_without_coplacement.time_limit_s=1",
    *(
        f"partitioner.{method}_without_{part}.method.time_limit_s=1"
        for method in ("netsplit_exclusive", "auto")
        for part in ("backward", "links")
    ),
)
SCALING = (*TINY, *SHORT_AUTO, "batch_size=8", "schedule.microbatches=4", "~cases.eight", "~cases.sixteen")


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
@pytest.mark.parametrize("name", ["table_6_4", "figure_6_2"])
def test_the_throughputs_of_the_thesis_stand_beside_ours(name: str, tmp_path: Path) -> None:
    said = run(tmp_path / name, name, *TABLE)
    found = lines(tmp_path / name)
    assert len(found) == len(CASES) * 2
    for line in found:
        assert float(line["samples_per_s"]) == pytest.approx(4 / float(line["predicted_s"]))
        ours, theirs = float(line["samples_per_s"]), float(line["published"])
        assert float(line["difference"]) == pytest.approx(ours / theirs - 1)
    assert (tmp_path / name / "cases.png").stat().st_size > 1000
    assert "41.83" in said


@pytest.mark.slow
def test_parts_of_the_formulation_are_left_out_in_turn(tmp_path: Path) -> None:
    run(tmp_path / "ablation", "ablation", *ABLATION)
    table = (tmp_path / "ablation" / "comparison.md").read_text()
    for method in (
        "netsplit", "netsplit_exclusive", "netsplit_exclusive_without_backward",
        "netsplit_exclusive_without_links", "netsplit_exclusive_without_coplacement",
        "auto", "auto_without_backward", "auto_without_links",
    ):  # fmt: skip
        assert f"| {method} |" in table or f"`{method}`" in table
    assert "failed" not in table


@pytest.mark.slow
def test_scaling_has_a_column_for_each_number_of_devices(tmp_path: Path) -> None:
    run(tmp_path / "scaling", "scaling", *SCALING)
    found = lines(tmp_path / "scaling")
    assert list(dict.fromkeys(line["case"] for line in found)) == ["one", "two", "four"]
    alone = {line["method"]: float(line["predicted_s"]) for line in found if line["case"] == "one"}
    assert max(alone.values()) == pytest.approx(min(alone.values()))


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
