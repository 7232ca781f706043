"""From MLflow's runs to a `Report`: comparisons with their tables and recorded pictures, and studies.

What is missing is left out: a run that failed, was only planned, or is older than a figure.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from netsplit.errors import ConfigError, NetSplitError
from netsplit.report.page import PictureFile, Report, Section
from netsplit.signature import suggest
from netsplit.tables import Column, Table
from netsplit.tracking.database import (
    COMPARISON,
    addressed,
    masked,
    open_client,
    require_database,
    server_of,
    words_of_failure,
)
from netsplit.tracking.figures import PICTURES
from netsplit.tracking.table import ComparisonRow, comparison_table, verdict_of, winner_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["read_report", "read_runs"]

NEWEST = "newest"
_UI = "`netsplit ui` (`make ui`) shows the ids."

Recorded: TypeAlias = dict[str, Any]
"""A row of `mlflow.search_runs` without missing values: ``status``, ``tags.role``, ``metrics.…``."""
Runs = int | str | Sequence[str]
"""NEWEST of each name, a number of newest, or (beginnings of) run ids."""
_MOST_TOLD, _VALUE = 6, 40  # differing parameters shown; characters of a value
_OWN = ("tracking.", "checkpoint.")
_SETTINGS = ("params.", "tags.host.", "tags.version.", "tags.link.")
_DESCRIBED = ("model", "dataset", "cluster", "schedule", "optimizer", "batch_size", "epochs", "seed")
_MS = (",.1f", 1e3)
_DECIDED = {
    "predicted_before": "Old plan, predicted", "predicted_after": "New plan, predicted",
    "measured_before": "Old plan, measured", "measured_after": "New plan, measured",
}  # fmt: skip


def read_report(
    uri: str, experiments: Sequence[str] = ("*",), runs: Runs = NEWEST, title: str = "NetSplit report"
) -> Report:
    """The chosen comparisons and studies in the database at `uri`.

    Args:
        uri: as of `Tracker`; a database file that is not there is not made.
        experiments: names of MLflow experiments, or patterns with ``*`` and ``?``.
        runs: "newest", the newest of each name; a number, so many newest; or ids of runs.

    Raises:
        ConfigError: there is no database, no such experiment or run, or none that has finished.
    """
    require_database(uri)
    reader = _ReportReader(open_client(uri), uri)
    try:
        every = read_runs(reader.client, experiments)
        chosen = choose_runs(every, runs)
        studies = [run for run in chosen if run["tags.role"] == "study"]
        sections: list[Section] = []
        for group in grouped([run for run in chosen if run not in studies]):
            sections += reader.group(group, every)
        sections += map(reader.study, studies)
    except NetSplitError:
        raise
    except Exception as error:  # MLflow passes on whatever its database driver or HTTP library raises
        reason = words_of_failure(error)
        raise ConfigError(f"tracking uri '{masked(uri)}' cannot be read: {reason}") from error
    counts = len(chosen) - len(studies), len(studies)
    return Report(title, sections, masked(uri), datetime.now(UTC), *counts)


class _ReportReader:
    def __init__(self, client: MlflowClient, uri: str) -> None:
        self.client = client
        self.server = server_of(uri)

    def group(self, group: Sequence[Recorded], every: Sequence[Recorded]) -> list[Section]:
        """A section for each comparison, after one with their throughput if there are several."""
        methods = [
            [run for run in reversed(every) if run.get(f"tags.{COMPARISON}") == one["run_id"]]
            for one in group
        ]
        if len(group) == 1:
            return [self.comparison(group[0], methods[0], name_of(group[0]))]
        labels = _differences(group)
        names = list(dict.fromkeys(map(name_of, group)))
        title = names[0] + " and others" * (len(names) > 1)
        rows = [list(map(self.row, each)) for each in methods]
        head = Section(title, [_when(group[0])], tables=[_throughputs(labels, rows)])
        parts = zip(group, methods, labels, strict=True)
        return [head, *(self.comparison(*part, inner=True) for part in parts)]

    def comparison(
        self, run: Recorded, methods: Sequence[Recorded], title: str, inner: bool = False
    ) -> Section:
        rows = list(map(self.row, methods))
        best = winner_of(rows)
        pictures = self.pictures(run, PICTURES)
        chosen = [each for each in methods if not inner or _method_of(each) == best]
        for each in chosen:  # of a sweep's job, only the fastest method
            pictures += self.pictures(each, {"timeline": f"An iteration of {_method_of(each)}"})
        reasons = [row.error for row in rows]
        failed = [row.reason for row in rows if row.error]
        failed += [run["tags.error"]] if "tags.error" in run and run["tags.error"] not in reasons else []
        figures = [comparison_table(rows)] if rows else []
        return Section(
            title,
            [*filter(None, [run.get("tags.verdict") or verdict_of(rows)]), _description(run), _when(run)],
            failed,
            [*figures, *self.decisions(methods)],
            pictures,
            [_settings(run), _ids([run, *methods])],
            [link for each in methods for link in self.trace(each)],
            inner,
        )

    def row(self, run: Recorded) -> ComparisonRow:
        """A method's figures, or why it has none."""
        state, name = run["status"], _method_of(run)
        if state != "FINISHED":
            why = {"RUNNING": "still running", "KILLED": "interrupted"}.get(state, "ended without saying why")
            return ComparisonRow(name, state.lower(), error=run.get("tags.error", why))
        content = self.file(run, "row.json")
        return ComparisonRow(name, "") if content is None else ComparisonRow(**json.loads(content))

    def decisions(self, methods: Sequence[Recorded]) -> list[Table]:
        """Decisions about plans while methods trained."""
        cells = [
            [
                _method_of(run), each.get("iteration"), each.get("outcome"),
                *(each.get(f"{kind}_s") for kind in _DECIDED),
                "; ".join((each.get("change") or {}).get("lines", ())), each.get("why"),
            ]
            for run in methods
            for each in json.loads(self.file(run, "adaptive.json") or "[]")
        ]  # fmt: skip
        columns = [
            Column("Method", text=True), Column("Iteration"), Column("Outcome", text=True),
            *(Column(f"{words} ms", *_MS) for words in _DECIDED.values()),
            Column("What changed", text=True), Column("Why", text=True),
        ]  # fmt: skip
        return [Table(columns, cells, "Plans considered while training")] if cells else []

    def study(self, run: Recorded) -> Section:
        """A study's recorded table, notes and pictures."""
        tables, title = [], name_of(run)
        if (content := self.file(run, "table.json")) is not None:
            shown = json.loads(content)
            columns = [Column(name, text=is_text) for name, is_text in shown["columns"]]
            tables = [Table(columns, shown["rows"], "Results", shown["notes"])]
            title = f"{title}: {shown['about']}"
        paths = [Path(each.path) for each in self.client.list_artifacts(run["run_id"])]
        pictures = self.pictures(run, {path.stem: path.stem for path in paths if path.suffix == ".png"})
        folded = [_settings(run), _ids([run])]
        return Section(title, [_when(run)], tables=tables, pictures=pictures, folded=folded)

    def pictures(self, run: Recorded, captions: Mapping[str, str]) -> list[PictureFile]:
        contents = [(words, self.file(run, f"{stem}.png")) for stem, words in captions.items()]
        return [PictureFile(words, content) for words, content in contents if content is not None]

    def file(self, run: Recorded, path: str) -> bytes | None:
        """A file of the run; None if it is missing."""
        if all(each.path != path for each in self.client.list_artifacts(run["run_id"])):
            return None
        with tempfile.TemporaryDirectory() as folder:
            return Path(self.client.download_artifacts(run["run_id"], path, folder)).read_bytes()

    def trace(self, run: Recorded) -> list[tuple[str, Path | str]]:
        """The trace's local file, or the run's page on its server."""
        name, artifacts = f"trace of {_method_of(run)}", urlsplit(run.get("artifact_uri", ""))
        if artifacts.scheme in ("", "file"):
            path = Path(unquote(artifacts.path)) / "trace.json"
            return [(name, path)] if path.is_file() else []
        if not self.server or all(e.path != "trace.json" for e in self.client.list_artifacts(run["run_id"])):
            return []
        place = f"{self.server}#/experiments/{run['experiment_id']}/runs/{run['run_id']}"
        return [(name, f"{place}/artifacts/trace.json")]


def read_runs(client: MlflowClient, patterns: Sequence[str]) -> list[Recorded]:
    """All runs of these experiments, names or patterns with ``*`` and ``?``; newest first.

    Raises:
        ConfigError: there is no such experiment.
    """
    import mlflow
    import pandas as pd

    known = {
        str(each.experiment_id): str(each.name) for each in client.search_experiments(max_results=50_000)
    }
    ids = []
    for pattern in patterns:
        named = [key for key, name in known.items() if name == pattern or fnmatchcase(name, pattern)]
        if not named:
            raise ConfigError(
                f"experiments names '{pattern}', which the database does not have: "
                f"{suggest(pattern, known.values())}"
            )
        ids += named
    with addressed(client.tracking_uri):
        table = mlflow.search_runs(list(dict.fromkeys(ids)), order_by=["attributes.start_time DESC"])
    runs = [{key: each for key, each in run.items() if pd.notna(each)} for run in table.to_dict("records")]
    return [run | {"experiment": known[run["experiment_id"]]} for run in runs]


def choose_runs(every: Sequence[Recorded], runs: Runs) -> list[Recorded]:
    """Comparisons and studies that finished, newest first; those of given ids in any state.

    Raises:
        ConfigError: there is no such run, or none has finished.
    """
    if not isinstance(runs, int) and runs != NEWEST:
        return _by_id(every, [runs] if isinstance(runs, str) else runs)
    if isinstance(runs, int) and runs < 1:
        raise ConfigError(f"runs is {runs}: give at least 1.")
    candidates = [run for run in every if _is_shown(run)]
    ended = [run for run in candidates if run["status"] == "FINISHED"]
    if not ended:
        raise ConfigError(_none_finished(candidates))
    return ended[:runs] if isinstance(runs, int) else _newest_of_each(ended, candidates)


def grouped(chosen: Sequence[Recorded]) -> list[list[Recorded]]:
    """A sweep's jobs together, in order; other runs alone."""
    groups: dict[tuple[str, ...], list[Recorded]] = {}
    for run in chosen:
        command = _command(run)
        groups.setdefault((run["experiment_id"], command or run["run_id"]), []).append(run)
    return [sorted(each, key=lambda run: run["start_time"]) for each in groups.values()]


def name_of(run: Recorded) -> str:
    return str(run["tags.mlflow.runName"])


def _newest_of_each(ended: Sequence[Recorded], candidates: Sequence[Recorded]) -> list[Recorded]:
    """What the newest command recorded for each study and comparison."""
    chosen: list[Recorded] = []
    for source in dict.fromkeys(map(_source, ended)):
        newest = next(run for run in ended if _source(run) == source)
        command = _command(newest)
        jobs = [run for run in candidates if (_source(run), _command(run)) == (source, command)]
        chosen += [run for run in jobs if run["status"] != "RUNNING"] if command else [newest]
    return chosen


def _source(run: Recorded) -> tuple[str, ...]:
    return run["experiment_id"], run["tags.role"], name_of(run)


def _command(run: Recorded) -> str:
    return str(run.get("tags.command", ""))


def _by_id(every: Sequence[Recorded], ids: Sequence[str]) -> list[Recorded]:
    """The runs with these ids; a method's id selects its comparison."""
    if not ids:
        raise ConfigError("runs is empty: give newest, a number of newest runs, or run ids in quotes.")
    known = {run["run_id"]: run for run in every}
    chosen: dict[str, Recorded] = {}
    for each in map(str, ids):
        matches = [run for run_id, run in known.items() if run_id.startswith(each)]
        if len(matches) != 1:
            number = "several runs begin with it: give more characters" if matches else "there is no such run"
            raise ConfigError(f"runs names '{each}', but {number}; {_UI}")
        run = known.get(matches[0].get(f"tags.{COMPARISON}", ""), matches[0])
        if not _is_shown(run):
            raise ConfigError(f"runs names '{each}', which is not a NetSplit run; {_UI}")
        chosen[run["run_id"]] = run
    return list(chosen.values())


def _none_finished(candidates: Sequence[Recorded]) -> str:
    if not candidates:
        return "there is no comparison or study: `netsplit compare` (`make run`) records one."
    states = [run["status"].lower() for run in candidates]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"no comparison or study has finished ({counted}): give runs=<id> for one that has not."


def _is_shown(run: Recorded) -> bool:
    return run.get("tags.role") in ("comparison", "study")


def _method_of(run: Recorded) -> str:
    return str(run.get("tags.method", name_of(run)))


def _throughputs(labels: Iterable[str], rows: Sequence[Sequence[ComparisonRow]]) -> Table:
    """Samples per second by comparison (rows) and method (columns)."""
    methods = list(dict.fromkeys(row.method for each in rows for row in each))
    cells = []
    for label, each in zip(labels, rows, strict=True):
        best = winner_of(each) if len(each) > 1 else None
        texts = {row.method: ("★ " if row.method == best else "") + _throughput(row) for row in each}
        cells.append([label, *(texts.get(method, "-") for method in methods)])
    planned = all(row.measured_s is None for each in rows for row in each)
    title = f"Throughput, samples/s{', predicted' * planned}; ★ fastest in its row"
    return Table([Column("Parameters", text=True), *map(Column, methods)], cells, title)


def _throughput(row: ComparisonRow) -> str:
    if row.failed or row.throughput is None:
        return "failed" if row.failed else "-"
    text = "no answer in time" if row.unanswered else f"{row.throughput:,.1f}"
    return f"! {text}" if row.overfull else text


def _settings(run: Recorded) -> Table:
    pairs = [(key.partition(".")[2], str(run[key])) for key in run if key.startswith(_SETTINGS)]
    return Table(
        [Column("Key", text=True), Column("Value", text=True)], sorted(pairs), "Settings and versions"
    )


def _ids(runs: Sequence[Recorded]) -> Table:
    columns = [Column(name, text=True) for name in ("Run", "Id in MLflow", "State")]
    return Table(columns, [(name_of(run), run["run_id"], run["status"].lower()) for run in runs], "Runs")


def _description(run: Recorded) -> str:
    """``Model AmoebaNetD, dataset digits, ….``"""
    values = ((key, run.get(f"tags.{key}", run.get(f"params.{key}"))) for key in _DESCRIBED)
    text = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values if value)
    planned = "Planned only. " if run.get("tags.mode") == "planned" else ""
    return f"{planned}{text[:1].upper()}{text[1:]}." if text else planned.strip()


def _when(run: Recorded) -> str:
    """Start, duration and machine of a run."""
    text = f"Started {run['start_time']:%Y-%m-%d %H:%M} UTC"
    if "end_time" in run:
        text += f", took {timedelta(seconds=round((run['end_time'] - run['start_time']).total_seconds()))}"
    machine = ", ".join(
        run[f"tags.host.{key}"] for key in ("name", "cpu", "gpus") if f"tags.host.{key}" in run
    )
    return f"{text}, on {machine}." if machine else f"{text}."


def _differences(group: Sequence[Recorded]) -> list[str]:
    """Parameters that differ between a sweep's jobs; of those that vary alike, the shortest."""
    keys = [key for key in group[0] if key.startswith("params.") and all(key in run for run in group)]
    key_of: dict[tuple[int, ...], str] = {}
    for key in sorted(keys, key=lambda key: (len(key), key)):
        values = [run[key] for run in group]
        alike = tuple(values.index(value) for value in values)
        if len(set(values)) > 1 and not key.removeprefix("params.").startswith(_OWN):
            key_of.setdefault(alike, key)
    shown = list(key_of.values())[:_MOST_TOLD]
    labels = [", ".join(f"{key[7:]}={run[key][:_VALUE]}" for key in shown) for run in group]
    if len(set(labels)) == len(group):
        return labels
    return [f"{label} {run['start_time']:%H:%M:%S}".strip() for label, run in zip(labels, group, strict=True)]
