"""What `runners.compare` does: a comparison of methods, shown as it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from rich.console import Console

from netsplit.cluster.described import ClusterDescription
from netsplit.progress import Stages
from netsplit.session.comparison import compare, experiment_of, forecast
from netsplit.session.request import Request
from netsplit.session.session import Session
from netsplit.tracking import Tracker, comparison_table, verdict_of, winner_of
from netsplit.tracking.database import masked, server_of
from netsplit.tracking.records import Comparison, Progress
from netsplit.tracking.table import ONE_DEVICE

from ._progress import ConsoleProgress
from .cli.planned import show_whole

__all__ = ["one"]

PORT = 5000  # where it does


def one(
    request: Request,
    name: str,
    labels: Mapping[str, str],
    folder: Path,
    console: Console,
    command: Callable[[str, str], str] | None = None,
) -> Comparison:
    """Compare all methods of one request; shows a table and what to do next.

    Args:
        command: of a runner's name and methods what makes it go on from here; None: nothing is suggested.
    """
    comparison = comparison_of(request, name, labels, folder, partial(ConsoleProgress, console))
    if comparison.decided is not None:
        show_whole(console, comparison.decided, remarks=False)
    if all(row.failed for row in comparison.rows):  # the error says all
        return comparison
    console.print(comparison_table(comparison.rows, name).terminal(spaced=True))
    closing = written(comparison.folder, request.tracker, comparison.charts)
    console.print(closing, markup=False, highlight=False, soft_wrap=True)
    last = [verdict_of(comparison.rows), *([next_step(comparison, request, command)] if command else [])]
    if any(last):
        console.print(
            " ".join(filter(None, last)), style="bold", highlight=False, markup=False, soft_wrap=True
        )
    return comparison


def next_step(comparison: Comparison, request: Request, command: Callable[[str, str], str]) -> str:
    """A suggestion: train with the winner, or compare the only method with others."""
    winner = winner_of(comparison.rows)
    if winner is None or not comparison.histories:
        return ""
    if len(comparison.rows) > 1:
        return f"To train with {winner}: {command('train', winner)}"
    kept = request.settings.checkpoint.trained == "folder"
    place = f"The trained parameters are in {comparison.folder / winner / 'checkpoint.pt'}. " if kept else ""
    method, other = ("auto", "auto") if winner == ONE_DEVICE else (winner, "one device")
    return f"{place}To compare it with {other}: {command('compare', f'[{method},{ONE_DEVICE}]')}"


def written(folder: Path, tracker: Tracker, charts: str = "") -> str:
    """Where the records are, and the address of the charts if a server has them."""
    own = f"sqlite:///{Path('outputs', 'mlflow.db').absolute()}"  # which `netsplit ui` shows
    sentence = f"This table is also in {folder / 'comparison.md'}"
    if tracker.enabled:
        shown = tracker.uri == own
        sentence += "; `netsplit ui` shows the runs" if shown else f"; the runs are in {masked(tracker.uri)}"
    served = {own: (", once `netsplit ui` runs", f"http://127.0.0.1:{PORT}/")}
    when, server = served.get(tracker.uri, ("", server_of(tracker.uri)))
    link = f"\nCharts of these methods{when}: {server}{charts}" if charts and server else ""
    return f"{sentence}.{link}"


def comparison_of(
    request: Request,
    name: str,
    labels: Mapping[str, str],
    folder: Path,
    progress: Callable[[], AbstractContextManager[Progress]],
) -> Comparison:
    """Compare all methods of a request; on a described cluster, predict them.

    Args:
        labels: config group -> what was chosen of it, for the record.
        folder: made where it is not there; what is written lies below it.
        progress: opened once the workers are asked for; a forecast has none.

    Raises:
        CaptureError, ConfigError, WorkerError: before any method could begin.
    """
    experiment, cluster = experiment_of(request, name, labels), request.cluster
    request.tracker.open(labels.get("experiment"))
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(cluster, ClusterDescription):
        return forecast(experiment, cluster, request.tracker, folder)
    session = Session(cluster, folder / "workers", profile=request.settings.profile)
    with session, progress() as display:
        session.stages = Stages(display.waiting)
        return compare(experiment, session, request.tracker, folder, display)
