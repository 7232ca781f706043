"""`docs/extending.md`, followed from a folder outside the repository."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from netsplit.formats.read import read_workload
from runners._entry import entry
from tests.commands import Command
from tests.docs.page import blocks, follow, sections

PAGE = sections("extending.md")


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


@pytest.fixture
def folder(tmp_path: Path, empty_database: Path) -> Path:
    """Empty but for the database, which the first command would take seconds to create."""
    (tmp_path / "outputs").mkdir()
    shutil.copy(empty_database, tmp_path / "outputs" / "mlflow.db")
    return tmp_path


def devices_in(table: str) -> set[str]:
    """Names of devices in a `comparison.md`."""
    return set(re.findall(r"\b(?:gpu|ring|new|old|cpu:)\d*\b", table))


def test_every_section_has_files_and_commands() -> None:
    assert list(PAGE) == ["A partitioner", "A schedule", "A cluster", "A model", "A data set"]
    for text in PAGE.values():
        on_page = blocks(text)
        assert any(block.file for block in on_page)
        assert on_page[-1].language == "bash"


def test_options_may_lie_in_a_package(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = tmp_path / "lab_of_options" / "conf" / "schedule" / "thrice.yaml"
    option.parent.mkdir(parents=True)
    option.write_text("_target_: netsplit.program.GPipe\nmicrobatches: 3\n")
    for folder in option.parents[1:3]:
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []

    def job(cfg: DictConfig) -> None:
        seen.append(cfg.schedule.microbatches)

    words = ("hydra.searchpath=[pkg://lab_of_options.conf]", "schedule=thrice")
    ended = command(entry()(job), "job", *words)
    assert (ended.code, ended.err, seen) == (0, "", [3])


@pytest.mark.slow
def test_a_partitioner_of_one_s_own_is_compared_with_others(folder: Path) -> None:
    printed = follow(PAGE["A partitioner"], folder)
    assert "least_busy" in printed
    run = only(folder, "outputs/compare/runs/*")
    table = (run / "comparison.md").read_text()
    assert "least_busy" in table
    assert "failed" not in table
    placement = json.loads((run / "least_busy" / "placement.json").read_text())
    graph = read_workload(run / "graph.json").graph
    assert placement["method"] == "least_busy"
    assert placement["device_of"].keys() == graph.nodes.keys()
    assert set(placement["device_of"].values()) == {"gpu0", "gpu1", "gpu2"}
    for group in graph.colocated:
        assert len({placement["device_of"][node] for node in group}) == 1
    assert "handicap: 1.5" in (run / ".hydra" / "config.yaml").read_text()


@pytest.mark.slow
def test_a_schedule_of_one_s_own_trains_what_plain_pytorch_trains(folder: Path) -> None:
    printed = follow(PAGE["A schedule"], folder)
    losses = re.findall(r"loss ([\d.]+) split, ([\d.]+) plain", printed)
    assert len(losses) == 3
    for split, whole in losses:
        assert float(split) == pytest.approx(float(whole), abs=1e-11)
    (difference,) = re.findall(r"parameters differ by at most (\S+)", printed)
    assert float(difference) < 1e-12
    run = only(folder, "outputs/compare/runs/*")
    program = (run / "balanced" / "program.txt").read_text()
    first = program.partition("\ngpu0:")[2].partition("\ngpu1:")[0]
    done = re.findall(r"(forward|backward) of segment 0, micro-batch (\d+)", first)
    assert done == [(phase, str(i)) for i in range(8) for phase in ("forward", "backward")]


@pytest.mark.slow
def test_clusters_of_one_s_own_are_planned_for(folder: Path) -> None:
    follow(PAGE["A cluster"], folder)
    ring = (folder / "clusters" / "comparison.md").read_text()
    assert {"ring0", "ring1", "ring2", "ring3"} == devices_in(ring)
    links = read_workload(folder / "clusters" / "graph.json").cluster
    assert links is not None
    assert links.links["ring0", "ring3"].bandwidth == pytest.approx(40e9)
    assert links.links["ring0", "ring2"].bandwidth == pytest.approx(10e9)


@pytest.mark.slow
def test_a_model_of_one_s_own_trains(folder: Path) -> None:
    follow(PAGE["A model"], folder)
    log = only(folder, "trained/*.log").read_text()
    accuracy = [float(each) for each in re.findall(r"test accuracy ([\d.]+) %", log)]
    assert len(accuracy) == 2
    assert accuracy[-1] > 50  # of ten classes
    state = torch.load(folder / "trained" / "balanced" / "checkpoint.pt", weights_only=True)
    assert state["stem.1.weight"].shape == (96, 64)
    assert devices_in((folder / "trained" / "comparison.md").read_text()) == {"cpu:0", "cpu:1"}


@pytest.mark.slow
def test_batches_of_a_data_set_of_one_s_own_arrive(folder: Path) -> None:
    printed = follow(PAGE["A data set"], folder)
    batches = re.findall(r"\(64, 3, 32, 32\) torch.float32, (\d+) of 64 are columns", printed)
    assert len(batches) == 3
    assert sum(map(int, batches)) == 96
    run = only(folder, "outputs/compare/runs/*")
    assert "stripes, 192 training and 32 test samples, 2 classes" in only(run, "*.log").read_text()
    graph = read_workload(run / "graph.json").graph
    assert (16, 3, 32, 32) in {graph.variables[name].shape for name in graph.input_variables}
