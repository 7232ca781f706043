"""Which of the recorded comparisons and studies a report shows."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

from netsplit.errors import ConfigError
from netsplit.signature import suggest
from netsplit.tracking.database import addressed
from netsplit.tracking.values import COMMAND, COMPARISON

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = ["NEWEST", "Recorded", "Runs", "choose_runs", "grouped", "name_of", "read_runs"]

NEWEST = "newest"
_UI = "`netsplit ui` (`make ui`) shows the ids."

Recorded: TypeAlias = dict[str, Any]
"""A row of `mlflow.search_runs` without what is missing: ``status``, ``tags.role``, ``metrics.…``."""
Runs = int | str | Sequence[str]
"""NEWEST of each name, so many newest, or ids of runs or their beginnings."""


def read_runs(client: MlflowClient, patterns: Sequence[str]) -> list[Recorded]:
    """All runs of the experiments that are named, or that a pattern with ``*`` and ``?`` meets; newest first.

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
    """Comparisons and studies: newest first, or in the order of the ids.

    Counted are those that finished; of a name of which none did, those whose methods all failed.

    Raises:
        ConfigError: there is no such run, or none has finished.
    """
    if not isinstance(runs, int) and runs != NEWEST:
        return _by_id(every, [runs] if isinstance(runs, str) else runs)
    if isinstance(runs, int) and runs < 1:
        raise ConfigError(f"runs is {runs}: give at least 1.")
    shown = [run for run in every if _is_shown(run)]
    finished = {name_of(run) for run in shown if run["status"] == "FINISHED"}
    ended = [
        run
        for run in shown
        if run["status"] == "FINISHED"
        or (name_of(run) not in finished and run["status"] == "FAILED" and "tags.failed_methods" in run)
    ]
    if not ended:
        raise ConfigError(_none_finished(shown))
    return ended[:runs] if isinstance(runs, int) else _newest_of_each(ended, shown)


def grouped(chosen: Sequence[Recorded]) -> list[list[Recorded]]:
    """The jobs of a sweep, in the order in which they began; others alone."""
    groups: dict[tuple[str, ...], list[Recorded]] = {}
    for run in chosen:
        command = _command(run)
        groups.setdefault((run["experiment_id"], command or run["run_id"]), []).append(run)
    return [sorted(each, key=lambda run: run["start_time"]) for each in groups.values()]


def name_of(run: Recorded) -> str:
    return str(run["tags.mlflow.runName"])


def _newest_of_each(ended: Sequence[Recorded], shown: Sequence[Recorded]) -> list[Recorded]:
    """What the newest command recorded, for each study and comparison."""
    chosen: list[Recorded] = []
    for source in dict.fromkeys(map(_source, ended)):
        newest = next(run for run in ended if _source(run) == source)
        command = _command(newest)
        jobs = [run for run in shown if (_source(run), _command(run)) == (source, command)]
        chosen += [run for run in jobs if run["status"] != "RUNNING"] if command else [newest]
    return chosen


def _source(run: Recorded) -> tuple[str, ...]:
    """What a run is a recording of."""
    return run["experiment_id"], run["tags.role"], name_of(run)


def _command(run: Recorded) -> str:
    return str(run.get(f"tags.{COMMAND}", ""))


def _by_id(every: Sequence[Recorded], ids: Sequence[str]) -> list[Recorded]:
    """The runs with these ids; a method's id stands for its comparison."""
    if not ids:
        raise ConfigError("runs is empty: give newest, how many of the newest, or run ids in quotes.")
    known = {run["run_id"]: run for run in every}
    chosen: dict[str, Recorded] = {}
    for each in map(str, ids):
        matches = [run for run_id, run in known.items() if run_id.startswith(each)]
        if len(matches) != 1:
            number = "several runs begin with it: give more of it" if matches else "there is no such run"
            raise ConfigError(f"runs names '{each}', but {number}; {_UI}")
        run = known.get(matches[0].get(f"tags.{COMPARISON}", ""), matches[0])
        if not _is_shown(run):
            raise ConfigError(f"runs names '{each}', which is no run of NetSplit; {_UI}")
        chosen[run["run_id"]] = run
    return list(chosen.values())


def _none_finished(shown: Sequence[Recorded]) -> str:
    if not shown:
        return "there is no comparison or study: `netsplit compare` (`make run`) records one."
    states = [run["status"].lower() for run in shown]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"no comparison or study has finished ({counted}): give runs=<id> for one that has not."


def _is_shown(run: Recorded) -> bool:
    """A comparison or a study; runs of methods belong to their comparison."""
    return run.get("tags.role") in ("comparison", "study")
