"""`reproduce.render`: what people and programs read is what the study found."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from netsplit.tracking import Tracker
from reproduce import Column, Picture, StudyResult, markdown, record, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(figure: Figure) -> None:
    figure.subplots().plot([1, 2], [3, 4])


RESULT = StudyResult(
    "Sizes",
    (Column("what", text=True), Column("MiB", ",.1f", 2.0**-20), Column("share (%)", "+.0f", 100.0)),
    (("a|b", 3 * 2**20, 0.25), ("none", None, float("nan"))),
    ("A note.",),
    (Picture("sizes", (3, 2), draw, ("x", "y"), ((1, 3), (2, 4))),),
    {"share.a": 0.25, "share.none": float("nan")},
)


def test_cells_are_shown_scaled_and_formed_and_a_dash_where_there_is_nothing() -> None:
    lines = markdown(RESULT).splitlines()
    assert lines[0] == "# Sizes"
    assert lines[2:] == [
        "| what | MiB | share (%) |",
        "| --- | ---: | ---: |",
        "| a\\|b | 3.0 | +25 |",
        "| none | - | - |",
        "",
        "- A note.",
    ]


def test_files_hold_the_cells_in_full_and_the_pictures_data(tmp_path: Path) -> None:
    paths = write(RESULT, tmp_path)
    assert [path.name for path in paths] == ["table.md", "table.csv", "sizes.png", "sizes.svg", "sizes.csv"]
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows == [["what", "MiB", "share (%)"], ["a|b", "3.0", "25.0"], ["none", "", ""]]
    assert (tmp_path / "sizes.csv").read_text() == "x,y\n1,3\n2,4\n"
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "sizes.svg").read_text()


class FakeTracker:
    """Remembers what a run was told."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {"files": []}

    @contextmanager
    def comparison(self, name: str, params: Any = None, tags: Any = None) -> Iterator[FakeTracker]:
        self.told |= {"name": name, "params": params, "tags": tags}
        yield self

    def metrics(self, values: Any) -> None:
        self.told["metrics"] = values

    def describe(self, text: str) -> None:
        self.told["text"] = text

    def artifact(self, path: Path) -> None:
        self.told["files"].append(path.name)


@pytest.mark.slow
def test_mlflow_has_the_run_with_its_artifacts(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    paths = write(RESULT, tmp_path / "run")
    record(RESULT, Tracker(uri, "studies"), "figure", {"study": {"alpha": 4}}, paths)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("studies")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], "tags.study = 'figure'")
    assert run.info.status == "FINISHED"
    assert run.data.metrics == {"share.a": 0.25}
    assert run.data.params["study.alpha"] == "4"
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {path.name for path in paths} <= names
