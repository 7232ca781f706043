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

from netsplit.cluster.local import parse_bytes
from netsplit.errors import ConfigError, NetSplitError
from netsplit.report.data.choose import (
    NEWEST,
    PARENT,
    Chosen,
    Runs,
    check_runs,
    choose_runs,
    is_study,
    runs_of,
)
from netsplit.report.data.differences import told_apart
from netsplit.report.data.groups import grouped
from netsplit.report.data.places import duration_s, place_of, started
from netsplit.report.data.results import (
    ComparisonResult,
    EpochFigures,
    MethodResult,
    Report,
)
from netsplit.report.data.studies import read_studies
from netsplit.tracking.database import open_client, require_database
from netsplit.tracking.metrics import TEST
from netsplit.tracking.table import ComparisonRow
from netsplit.tracking.values import masked, plain_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

from netsplit.tracking.tags import DECISION, PARTS, PUBLISHED
from netsplit.training.adapt.decisions import CHANGED

__all__ = ["read_report"]

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
    condition = f"tags.`{PARENT}` = '{run.info.run_id}'"
    children = [
        child
        for child in reversed(runs_of(client, [run.info.experiment_id], condition))
        if child.data.tags.get("role") == "method"
    ]
    return ComparisonResult(
        name=str(run.info.run_name),
        place=place_of(client, uri, run),
        experiment=chosen.experiment,
        state=str(run.info.status),
        methods=[_method(client, uri, child, params, tags) for child in children],
        tags=tags,
        params=params,
        started=started(run),
        seconds=duration_s(run),
        error=tags.get("error"),
        older=chosen.older,
        more=chosen.more,
    )


def _method(
    client: MlflowClient, uri: str, run: Run, shared: Mapping[str, str], tags: Mapping[str, str]
) -> MethodResult:
    """One method: `shared` and `tags` are its comparison's parameters and tags."""
    params = {**shared, **run.data.params}
    metrics = {key: float(value) for key, value in run.data.metrics.items() if _finite(value) is not None}
    epochs = _epochs(client, run)
    predicted_s = metrics.get("predicted_iteration_s")
    # Runs of before 'median_throughput' was recorded have the median under the name of the mean.
    measured = metrics.get("median_throughput", metrics.get("mean_throughput"))
    measured_s = metrics.get("measured_iteration_s")
    batch = _finite(params.get("batch_size"))
    expected = metrics.get("predicted_throughput")
    if expected is None and batch and predicted_s:
        expected = batch / predicted_s
    if measured_s is None and measured is not None:  # of a plan, whose figure is a prediction
        expected, measured = measured, None
    row = _row(run, metrics, params, epochs, measured)
    return MethodResult(
        row=row,
        place=place_of(client, uri, run),
        state=str(run.info.status),
        predicted_throughput=expected,
        engine=run.data.tags.get("solver_engine", ""),
        bound_s=metrics.get("solver_bound_s"),
        started=started(run),
        seconds=duration_s(run),
        epochs=epochs,
        published=_finite(tags.get(plain_key(PUBLISHED + row.method))),
        decisions=_records(run.data.tags, DECISION),
        parts=_records(run.data.tags, PARTS),
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


def _row(
    run: Run,
    metrics: Mapping[str, float],
    params: Mapping[str, str],
    epochs: Sequence[EpochFigures],
    throughput: float | None,
) -> ComparisonRow:
    predicted = _bytes_of(metrics, "predicted_peak_bytes.")
    measured = _bytes_of(metrics, "measured_peak_bytes.")
    devices = list(dict.fromkeys([*predicted, *measured]))
    last = epochs[-1] if epochs else EpochFigures(0)
    state = str(run.info.status)
    return ComparisonRow(
        method=run.data.tags.get("method") or str(run.info.run_name),
        status=run.data.tags.get("solver_status", state.lower()),
        objective_s=metrics.get("solver_objective_s"),
        gap=metrics.get("solver_gap"),
        solve_s=metrics.get("solver_seconds"),
        predicted_s=metrics.get("predicted_iteration_s"),
        measured_s=metrics.get("measured_iteration_s"),
        throughput=throughput,
        score=last.score,
        metric=_metric(run),
        predicted_peak=predicted,
        measured_peak=measured,
        capacity=_bytes_of(metrics, "capacity_bytes.") or _capacities(params, devices),
        nodes=_bytes_of(metrics, "nodes."),
        loss=last.train_loss,
        error=None if state == "FINISHED" else run.data.tags.get("error") or _unfinished(state),
        earlier="measured_by" in run.data.tags,
        optimises=run.data.tags.get("solver_optimises", ""),
        parts=run.data.tags.get("in_parts", ""),
        changes=sum(each.get("outcome") in CHANGED for each in _records(run.data.tags, DECISION)),
    )


def _unfinished(state: str) -> str:
    return {"RUNNING": "still running", "KILLED": "interrupted"}.get(state, "ended without saying why")


def _epochs(client: MlflowClient, run: Run) -> list[EpochFigures]:
    """The values of each epoch; of a step that was written twice, the last."""
    figures: dict[str, dict[int, float | None]] = {}
    score = TEST + _metric(run)
    for key in ("train_loss", score, "epoch_s"):
        if key in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, key)
            figures[key] = {int(point.step): _finite(point.value) for point in history}
    steps = sorted({step for values in figures.values() for step in values})

    def of(key: str, step: int) -> float | None:
        return figures.get(key, {}).get(step)

    return [
        EpochFigures(step, of("train_loss", step), of(score, step), of("epoch_s", step)) for step in steps
    ]


def _metric(run: Run) -> str:
    """The name of what was computed on the test half after every epoch."""
    return next((key.removeprefix(TEST) for key in run.data.metrics if key.startswith(TEST)), "")


def _bytes_of(metrics: Mapping[str, float], prefix: str) -> dict[str, int]:
    return {key.removeprefix(prefix): int(value) for key, value in metrics.items() if key.startswith(prefix)}


def _capacities(params: Mapping[str, str], devices: Sequence[str]) -> dict[str, int]:
    """Of the cluster's config; nothing where it gives a fraction, or all that a device has."""
    capacities: dict[str, int] = {}
    for device in devices:
        capacities |= _only(device, _size(params.get("cluster.capacity")))
    for index in range(len(params)):
        name = params.get(f"cluster.devices.{index}.name")
        if name is None:
            break
        capacities |= _only(name, _size(params.get(f"cluster.devices.{index}.capacity")))
    return capacities


def _only(name: str, nbytes: int | None) -> dict[str, int]:
    return {} if nbytes is None else {name: nbytes}


def _size(text: str | None) -> int | None:
    number = _finite(text)
    if number is not None:
        return int(number) if number > 1 else None  # at most 1: a fraction of what the graph needs
    try:
        return None if text is None else parse_bytes(text)
    except ConfigError:
        return None


def _finite(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and abs(number) < _INFINITE else None
