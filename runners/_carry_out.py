"""A request carried out: a comparison on devices that are here, a forecast on described ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from netsplit.cluster.described import ClusterDescription
from netsplit.progress import Stages
from netsplit.session.comparison import compare, experiment_of, forecast
from netsplit.session.request import Request
from netsplit.session.session import Session
from netsplit.tracking.records import Comparison, Progress

__all__ = ["ShowProgress", "comparison_of"]

ShowProgress: TypeAlias = Callable[[], AbstractContextManager[Progress]]


def comparison_of(
    request: Request, name: str, labels: Mapping[str, str], folder: Path, progress: ShowProgress
) -> Comparison:
    """Compare all methods of a request; a forecast where its cluster is a described one.

    Args:
        labels: config group -> what was chosen of it, for the record.
        folder: made where it is not there; what is written lies below it.
        progress: opened once the workers are asked for; a forecast has none.

    Raises:
        CaptureError, ConfigError, WorkerError: before any method could begin.
    """
    asked, cluster = experiment_of(request, name, labels), request.cluster
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(cluster, ClusterDescription):
        return forecast(asked, cluster, request.tracker, folder)
    session = Session(cluster, folder / "workers", profile=request.settings.profile)
    with session, progress() as shown:
        session.stages = Stages(shown.waiting)
        return compare(asked, session, request.tracker, folder, shown)
