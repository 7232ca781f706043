"""From MLflow's runs to a `Report`: only what a run holds is read, no other file of its comparison.

What is missing stays None: a run that failed, was only planned, or is older than a figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from netsplit.errors import ConfigError, NetSplitError
from netsplit.report.data.choose import (
    NEWEST,
    Chosen,
    Runs,
    check_runs,
    choose_runs,
    is_study,
    runs_of,
)
from netsplit.report.data.groups import grouped, told_apart
from netsplit.report.data.results import (
    ComparisonResult,
    EpochFigures,
    MethodResult,
    Report,
    duration_s,
    place_of,
    started,
)
from netsplit.report.data.studies import read_studies
from netsplit.tracking.database import open_client, require_database
from netsplit.tracking.metrics import TEST
from netsplit.tracking.table import ComparisonRow
from netsplit.tracking.values import masked, plain_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

from netsplit.tracking.metrics import COMPARISON, DECISION, PUBLISHED
from netsplit.training.adapt.decisions import CHANGED

__all__ = ["read_report"]

_LOSS, _SECONDS = "train/epoch_loss", "train/epoch_s"
_INFINITE = 1e300  # MLflow keeps an infinity as the largest number of its database


def read_report(
    uri: str,
    experiments: Sequence[str] = ("*",),
    runs: Runs = NEWEST,
    title: str = "NetSplit report",
) -> Report:
    """What the database at `uri` holds of the chosen comparisons and studies.

    Args:
        uri: as of `Tracker`; a database file that is not there is not made.
        experiments: names of MLflow experiments, or patterns with ``*`` and ``?``.
        runs: "newest", the newest of each name; a number, so many newest; or ids of runs.

    Raises:
        ConfigError: there is no database, no such experiment or run, or none that has finished.
    """
    check_runs(runs)
    require_database(uri)
    client = open_client(uri)
    try:
        chosen = choose_runs(client, experiments, runs)
        comparisons = [_comparison(client, uri, each) for each in chosen if not is_study(each.run)]
        studies = read_studies(
            client, uri, [(each.run, each.experiment) for each in chosen if is_study(each.run)]
        )
    except NetSplitError:
        raise
    except Exception as error:  # MLflow passes on whatever its database driver or HTTP library raises
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"tracking uri '{masked(uri)}' cannot be read: {masked(reason)}") from error
    return Report(title, grouped(told_apart(comparisons)), masked(uri), datetime.now(UTC), studies)


def _comparison(client: MlflowClient, uri: str, chosen: Chosen) -> ComparisonResult:
    run = chosen.run
    params, tags = dict(run.data.params), dict(run.data.tags)
    condition = f"tags.{COMPARISON} = '{run.info.run_id}'"
    methods = reversed(runs_of(client, [run.info.experiment_id], condition))
    return ComparisonResult(
        name=str(run.info.run_name),
        place=place_of(client, uri, run),
        experiment=chosen.experiment,
        state=str(run.info.status),
        methods=[_method(client, uri, each, tags) for each in methods],
        tags=tags,
        params=params,
        started=started(run),
        seconds=duration_s(run),
        error=tags.get("error"),
        older=chosen.older,
        more=chosen.more,
    )


def _method(client: MlflowClient, uri: str, run: Run, tags: Mapping[str, str]) -> MethodResult:
    """One method: `tags` are its comparison's."""
    metrics = {key: float(value) for key, value in run.data.metrics.items() if _finite(value) is not None}
    epochs = _epochs(client, run)
    row = _row(run, metrics, epochs)
    return MethodResult(
        row=row,
        place=place_of(client, uri, run),
        state=str(run.info.status),
        predicted_throughput=metrics.get("speed/samples_per_s_predicted"),
        engine=run.data.tags.get("solver_engine", ""),
        bound_s=_finite(run.data.tags.get("solver_bound_s")),
        started=started(run),
        seconds=duration_s(run),
        epochs=epochs,
        published=_finite(tags.get(plain_key(PUBLISHED + row.method))),
        decisions=_records(run.data.tags, DECISION),
        over_capacity=run.data.tags.get("over_capacity", ""),
    )


def _records(tags: Mapping[str, str], prefix: str) -> list[dict[str, Any]]:
    """Of the tags ``<prefix><n>``, one after another; what is none is left out."""
    records = []
    for key in sorted(tags, key=lambda key: (len(key), key)):
        if key.startswith(prefix):
            with suppress(ValueError):
                read = json.loads(tags[key])
                records += [read] if isinstance(read, dict) else []
    return records


def _row(run: Run, metrics: Mapping[str, float], epochs: Sequence[EpochFigures]) -> ComparisonRow:
    tags = run.data.tags
    last = epochs[-1] if epochs else EpochFigures(0)
    state = str(run.info.status)
    return ComparisonRow(
        method=tags.get("method") or str(run.info.run_name),
        status=tags.get("solver_status", state.lower()),
        objective_s=_finite(tags.get("solver_objective_s")),
        gap=metrics.get("solver_gap"),
        solve_s=metrics.get("solver_seconds"),
        predicted_s=metrics.get("seconds_per_iteration_predicted"),
        measured_s=metrics.get("speed/seconds_per_iteration"),
        throughput=metrics.get("speed/samples_per_s"),
        score=last.score,
        metric=_metric(run),
        predicted_peak=_by_device(tags, "predicted_peak_bytes."),
        measured_peak=_by_device(tags, "measured_peak_bytes."),
        capacity=_by_device(tags, "capacity_bytes."),
        nodes=_by_device(tags, "nodes."),
        loss=last.train_loss,
        error=None if state == "FINISHED" else tags.get("error") or _unfinished(state),
        earlier="measured_by" in tags,
        optimises=tags.get("solver_optimises", ""),
        parts=tags.get("in_parts", ""),
        changes=sum(each.get("outcome") in CHANGED for each in _records(tags, DECISION)),
    )


def _unfinished(state: str) -> str:
    return {"RUNNING": "still running", "KILLED": "interrupted"}.get(state, "ended without saying why")


def _epochs(client: MlflowClient, run: Run) -> list[EpochFigures]:
    """The values of each epoch; of a step that was written twice, the last."""
    figures: dict[str, dict[int, float | None]] = {}
    score = TEST + _metric(run)
    for key in (_LOSS, score, _SECONDS):
        if key in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, key)
            figures[key] = {int(point.step): _finite(point.value) for point in history}
    steps = sorted({step for values in figures.values() for step in values})

    def of(key: str, step: int) -> float | None:
        return figures.get(key, {}).get(step)

    return [EpochFigures(step, of(_LOSS, step), of(score, step), of(_SECONDS, step)) for step in steps]


def _metric(run: Run) -> str:
    """The name of what was computed on the test half after every epoch."""
    return next((key.removeprefix(TEST) for key in run.data.metrics if key.startswith(TEST)), "")


def _by_device(tags: Mapping[str, str], prefix: str) -> dict[str, int]:
    return {key.removeprefix(prefix): int(value) for key, value in tags.items() if key.startswith(prefix)}


def _finite(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and abs(number) < _INFINITE else None
