"""From the run of a study to a `StudyRecord`: its table as it was written, its pictures."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from netsplit.report.data.results import PictureFile, Place, StudyRecord, place_of, started
from netsplit.report.text import NONE, moment

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["read_studies"]

_TABLE = "table.md"
_NOTE = "mlflow.note.content"  # the table on the run's page, where the file is not at hand
_KINDS = {".svg": "image/svg+xml", ".png": "image/png"}
_MOST_BYTES = 400_000  # of a picture, where there is a smaller one
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


def read_studies(client: MlflowClient, uri: str, runs: Sequence[tuple[Run, str]]) -> list[StudyRecord]:
    """The studies of runs with the names of their experiments; those of one name with when they ended."""
    studies = [_study(client, uri, run, experiment) for run, experiment in runs]
    names = [study.name for study in studies]
    return [
        replace(study, detail=moment(study.started)) if names.count(study.name) > 1 else study
        for study in studies
    ]


def _study(client: MlflowClient, uri: str, run: Run, experiment: str) -> StudyRecord:
    """What was recorded; a study whose files are gone keeps what the database holds of it."""
    place, tags = place_of(client, uri, run), dict(run.data.tags)
    files = _Files(client, place)
    table = files.read(_TABLE)
    text = tags.get(_NOTE, "") if table is None else table.decode("utf-8", "replace")
    lines = text.splitlines()
    rows = [_cells(line) for line in lines if line.startswith("|")]
    headings, kinds, *rest = rows if len(rows) > 1 else [[], []]
    return StudyRecord(
        name=str(run.info.run_name),
        place=place,
        experiment=experiment,
        about=next((line.removeprefix("# ") for line in lines if line.startswith("# ")), ""),
        headings=headings,
        numeric=[kind.endswith(":") for kind in kinds],
        rows=[row for row in rest if len(row) == len(headings)],
        notes=[line.removeprefix("- ") for line in lines if line.startswith("- ")],
        pictures=files.pictures(),
        tags=tags,
        params=dict(run.data.params),
        started=started(run),
    )


class _Files:
    """The files of a run: of a folder on this machine, else of its tracking server."""

    def __init__(self, client: MlflowClient, place: Place) -> None:
        self.client = client
        self.place = place
        if place.folder is not None:
            self.names = sorted(path.name for path in place.folder.iterdir())
        elif place.page is not None:
            self.names = sorted(str(each.path) for each in client.list_artifacts(place.run_id))
        else:
            self.names = []

    def read(self, name: str) -> bytes | None:
        if name not in self.names:
            return None
        if self.place.folder is not None:
            return (self.place.folder / name).read_bytes()
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        with tempfile.TemporaryDirectory() as folder:
            return Path(self.client.download_artifacts(self.place.run_id, name, folder)).read_bytes()

    def pictures(self) -> list[PictureFile]:
        """One file of each picture: a drawing that is not too large, else the smallest."""
        stems = dict.fromkeys(PurePosixPath(name).stem for name in self.names if _kind(name))
        return [self._picture(stem) for stem in stems]

    def _picture(self, stem: str) -> PictureFile:
        files: list[PictureFile] = []
        for suffix, kind in _KINDS.items():
            content = self.read(f"{stem}{suffix}")
            files += [] if content is None else [PictureFile(stem, kind, content)]
        small = [each for each in files if len(each.content) <= _MOST_BYTES]
        return small[0] if small else min(files, key=lambda each: len(each.content))


def _kind(name: str) -> str | None:
    return _KINDS.get(PurePosixPath(name).suffix)


def _cells(line: str) -> list[str]:
    """The cells of a line of the table, as they were before they were escaped."""
    cells = [cell.strip().replace("\\|", "|") for cell in _BETWEEN_CELLS.split(line)[1:-1]]
    return [NONE if cell == "-" else cell for cell in cells]
