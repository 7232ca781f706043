"""`python -m reproduce`: every experiment in small, and one sentence for each mistake."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra import compose, initialize_config_dir

from reproduce.command import STUDIES, main, studies
from reproduce.question import question
from tests.commands import Command
from tests.cover import few

TINY_VGG = ["model.width=2", "model.hidden=4"]  # captured in a tenth of the time of AmoebaNet-D


class Ended(NamedTuple):
    code: int
    out: str
    err: str
    folder: Path


Run = Callable[..., Ended]


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Run:
    folder = tmp_path / "run"

    def call(*arguments: str) -> Ended:
        words = ("reproduce", *arguments, "tracking=none", f"hydra.run.dir={folder}")
        return Ended(*command(main, *words), folder)

    return call


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open() as file:
        return list(csv.DictReader(file))


def shrunk(name: str, *changes: str) -> list[str]:
    return [f"study.cases.{name}.{change}" for change in changes]


def small_images(name: str) -> list[str]:
    return shrunk(name, "dataset.shape=[3,32,32]", "batch_size=4")


def complete(ended: Ended, picture: str, rows: int) -> list[dict[str, str]]:
    assert ended.code == 0, ended.err
    names = {"table.md", "table.csv", *(f"{picture}.{suffix}" for suffix in ("png", "svg", "csv"))}
    assert names <= {path.name for path in ended.folder.iterdir()}
    lines = table(ended.folder)
    assert len(lines) == rows
    return lines


def tiny_vgg(name: str) -> list[str]:
    """In place of the experiment's own model."""
    return [f"model@study.cases.{name}.model=vgg19_small", *shrunk(name, *TINY_VGG)]


def test_table_6_3_in_small(run: Run) -> None:
    dropped = [
        f"~study.cases.{name}"
        for name in (
            "amoebanet_d", "amoebanet_d_272", "amoebanet_d_312", "wide_resnet152",
            "wide_resnet152_bottleneck",
            "unet_transposed", "unet_5_64", "deeplab_v3", "deeplab_v3_plain", "deeplab_v3_all",
        )
    ]  # fmt: skip
    changes = [change for name in ("unet", "unet_3_32") for change in small_images(name)]
    changes += shrunk("unet", "model.base_channels=4", "model.depth=2")
    changes += shrunk("unet_3_32", "model.base_channels=4", "model.num_convs=1", "model.depth=2")
    rows = complete(run("experiment=table_6_3", *dropped, *changes), "memory", 2)
    for row in rows:
        exported, printed = float(row["exported (MiB)"]), float(row["printed (MiB)"])
        assert float(row["difference (%)"]) == pytest.approx(100 * (exported / printed - 1))


def test_table_6_4_in_small(run: Run) -> None:
    """Ours beside the printed figures, and how far the methods' order agrees."""
    dropped = [
        f"~study.cases.{name}" for name in ("amoebanet_d", "wide_resnet152_bottleneck", "unet", "deeplab_v3")
    ] + [f"~study.methods.{name}" for name in ("pesto", "m_sct", "m_etf", "auto")]
    changes = ["model@study.cases.wide_resnet152.model=vgg19_small", *small_images("wide_resnet152")]
    printed = "study.cases.wide_resnet152.reference={m_topo: 41.25, netsplit: 41.83}"
    ended = run("experiment=table_6_4", *dropped, *changes, *shrunk("wide_resnet152", *TINY_VGG), printed)
    rows = complete(ended, "throughputs", 2)
    assert [row["method"] for row in rows] == ["m_topo", "netsplit"]
    for row in rows:
        ours, theirs = float(row["samples/s"]), float(row["printed"])
        assert float(row["difference (%)"]) == pytest.approx(100 * (ours / theirs - 1))
    assert "wide_resnet152: 0 of 2 within 20 %" in (ended.folder / "table.md").read_text()


def test_figure_5_3_in_small(run: Run) -> None:
    changes = ["~study.cases.batch_64", "study.threshold_bytes=2e4"]
    changes += [*tiny_vgg("batch_128"), *small_images("batch_128")]
    ended = run("experiment=figure_5_3", *changes)
    (row,) = complete(ended, "edges", 1)
    with (ended.folder / "edges.csv").open() as file:
        curve = [(int(each["bytes"]), float(each[list(each)[-1]])) for each in csv.DictReader(file)]
    below = max((fraction for nbytes, fraction in curve if nbytes < 2e4), default=0.0)
    assert 0 < below < 1
    assert float(row["below 0.02 MB (%)"]) == pytest.approx(100 * below)


def test_figure_5_2_in_small(run: Run) -> None:
    changes = ["study.repeats=1", "study.rounds=1", "study.most=3", *small_images("titan_rtx")]
    changes += [*tiny_vgg("titan_rtx"), *tiny_vgg("here"), *shrunk("here", "batch_size=4")]
    changes += [f"~study.cases.here.model.{key}" for key in ("num_layers", "num_filters", "small_images")]
    rows = complete(run("experiment=figure_5_2", *changes), "operators", 10)
    assert [row["operator"] for row in rows].count("all") == 2
    assert all(float(row["backward (ms)"]) > 0 for row in rows if row["operator"] in ("conv2d", "all"))


def test_figure_4_2_in_small(run: Run) -> None:
    dropped = [f"~study.cases.{name}" for name in ("two_workers", "small_batch", "small_head")]
    changes = [*dropped, *shrunk("four_gpus", "model.width=4", "batch_size=16")]
    (row,) = complete(run("experiment=figure_4_2", *changes), "breakdown", 1)
    parts = ("forward", "backward", "communication", "update", "waiting")
    assert sum(float(row[f"{part} (%)"]) for part in parts) == pytest.approx(100.0)
    assert row["devices"] == "4"


def test_described_links(run: Run) -> None:
    rows = complete(run("experiment=figure_6_1", "~study.cases.here"), "links", 2)
    for row in rows:
        milliseconds = float(row["latency (µs)"]) / 1e3 + 1 / float(row["bandwidth (GB/s)"])
        assert float(row["1 MB (ms)"]) == pytest.approx(milliseconds)


@pytest.mark.parametrize("name", few(list(studies()), 5))
def test_every_study_fits_what_it_asks(name: str, tmp_path: Path) -> None:
    """Its own keys, its cases', and those of the models, datasets, clusters and methods that they choose."""
    with initialize_config_dir(str(STUDIES), version_base="1.3"):
        cfg = compose("study", [f"experiment={name}"])
    assert callable(question(cfg.study, tmp_path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["experiment=quick"], ["is a comparison", "netsplit compare experiment=quick"]),
        (["experiment=figure_5_3", "study.cases.batch_64.batch_size=0"], ["batch_size", "at least 1"]),
        (["experiment=figure_5_3", "study.cases=null"], ["study.cases is empty"]),
        (["experiment=figure_6_1", "study.cases.pix.pair=[gpu0,gpu9]", "~study.cases.here"], ["pix", "gpu9"]),
    ],
)  # fmt: skip
def test_a_mistake_gives_one_sentence_and_exit_code_2(
    run: Run, arguments: list[str], words: list[str]
) -> None:
    ended = run(*arguments)
    assert ended.code == 2, ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert all(word in ended.err for word in words), ended.err


def test_ten_lines_answer_a_question_of_ones_own(run: Run, tmp_path: Path) -> None:
    """The example of docs/studies.md."""
    text = (STUDIES.parents[1] / "docs" / "studies.md").read_text()
    yaml = text.split("```yaml\n", 1)[1].split("```", 1)[0]
    assert len([line for line in yaml.splitlines() if line.strip()]) <= 10
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "my_question.yaml").write_text(yaml)
    ended = run("--config-dir", str(tmp_path / "mine"), "experiment=my_question")
    (row,) = complete(ended, "memory", 1)
    assert float(row["static (MiB)"]) > float(row["peak (MiB)"]) > 0
