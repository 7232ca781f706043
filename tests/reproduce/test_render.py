"""`reproduce.render`: what people and programs read is what the study found."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reproduce import Column, Picture, StudyResult, markdown, write

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
