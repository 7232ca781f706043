"""Where a run is found, and when it was there."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from netsplit.report.data.results import Place
from netsplit.tracking.charts import server_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["duration_s", "place_of", "started"]

_TRACE = "trace.json"


def place_of(client: MlflowClient, uri: str, run: Run) -> Place:
    """Its files where they are on this machine, and its page on a tracking server."""
    run_id, artifacts = str(run.info.run_id), urlsplit(run.info.artifact_uri or "")
    page = None
    if server := server_of(uri):
        page = f"{server}#/experiments/{quote(run.info.experiment_id)}/runs/{quote(run_id)}"
    if artifacts.scheme in ("", "file"):
        folder = Path(unquote(artifacts.path))
        is_here = bool(artifacts.path) and folder.is_dir()
        trace = folder / _TRACE
        return Place(run_id, page, folder if is_here else None, trace if trace.is_file() else None)
    if page is None or all(each.path != _TRACE for each in client.list_artifacts(run_id)):
        return Place(run_id, page)
    return Place(run_id, page, trace=f"{page}/artifacts/{_TRACE}")


def started(run: Run) -> datetime | None:
    begin = run.info.start_time
    return None if begin is None else datetime.fromtimestamp(begin / 1e3, UTC)


def duration_s(run: Run) -> float | None:
    begin, end = run.info.start_time, run.info.end_time
    return None if begin is None or end is None else (end - begin) / 1e3
