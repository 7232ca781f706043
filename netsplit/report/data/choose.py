"""Which comparisons and studies of the database a report shows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from netsplit.errors import ConfigError
from netsplit.report.data.results import source_of
from netsplit.signature import suggest
from netsplit.tracking.metrics import COMMAND, COMPARISON

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["NEWEST", "Chosen", "Runs", "check_runs", "choose_runs", "is_study", "runs_of"]

NEWEST = "newest"
_ROLE, _STUDY = "role", "study"
_ROLES = ("comparison", _STUDY)
_PAGE = 50_000  # runs of one answer: as many as MLflow gives
_LEAST_ID = 4  # characters of a run's id that are enough
_MOST = 60  # comparisons of one command and name

Runs = int | str | Sequence[str]
"""NEWEST of each name, so many newest, or ids of runs or their beginnings."""


@dataclass(frozen=True)
class Chosen:
    """A run that is shown, and what is left out in favour of it."""

    run: Run
    experiment: str  # of MLflow
    older: int = 0  # older comparisons of its name
    more: int = 0  # comparisons of its command


def check_runs(runs: Runs) -> Runs:
    """`runs` as the functions here take it, an id as a list of one.

    Raises:
        ConfigError: it is none of what may be given.
    """
    accepted = "give newest, how many of the newest, or run ids in quotes"
    if isinstance(runs, bool) or not isinstance(runs, (int, str, Sequence)):
        raise ConfigError(f"runs is {runs}: {accepted}.")
    if isinstance(runs, int):
        if runs < 1:
            raise ConfigError(f"runs is {runs}: give at least 1.")
        return runs
    if runs == NEWEST:
        return runs
    ids = [runs] if isinstance(runs, str) else list(runs)
    wrong = [each for each in ids if not isinstance(each, str) or len(each) < _LEAST_ID]
    if wrong or not ids:
        raise ConfigError(
            f"runs is {wrong[0] if wrong else 'empty'}: {accepted}, {_LEAST_ID} characters or more."
        )
    return ids


def choose_runs(client: MlflowClient, experiments: Sequence[str], runs: Runs) -> list[Chosen]:
    """Comparisons and studies: newest first, or in the order of the ids.

    Counted are those that finished; of a name of which none did, those whose methods all failed.

    Args:
        experiments: names, or patterns with ``*`` and ``?``.

    Raises:
        ConfigError: no such experiment, no such run, or none that has finished.
    """
    runs = check_runs(runs)
    names = _experiments(client, experiments)
    if isinstance(runs, Sequence) and not isinstance(runs, str):
        chosen = _by_id(client, list(names), runs)
    else:
        every = [run for run in runs_of(client, list(names), "tags.role != 'method'") if _is_shown(run)]
        ended = _ended(every)
        if not ended:
            raise ConfigError(_none_finished(every, list(names.values())))
        if isinstance(runs, str):
            return _newest_of_each(ended, every, names)
        chosen = ended[:runs]
    return [Chosen(run, names[run.info.experiment_id]) for run in chosen]


def is_study(run: Run) -> bool:
    return str(run.data.tags.get(_ROLE)) == _STUDY


def runs_of(client: MlflowClient, experiment_ids: list[str], condition: str) -> list[Run]:
    """All runs that meet the condition, the newest first."""
    newest = ["attributes.start_time DESC"]
    return list(client.search_runs(experiment_ids, condition, max_results=_PAGE, order_by=newest))


def _experiments(client: MlflowClient, patterns: Sequence[str]) -> dict[str, str]:
    """Id to name of the experiments that the patterns name."""
    every = client.search_experiments(max_results=_PAGE)
    known = {str(each.experiment_id): str(each.name) for each in every}
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in known.values()):
            raise ConfigError(
                f"experiments names '{pattern}', which the database does not have: "
                f"{suggest(pattern, known.values())}"
            )
    return {key: name for key, name in known.items() if any(_matches(name, each) for each in patterns)}


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)  # a name may hold what a pattern reads as a sign


def _ended(every: Sequence[Run]) -> list[Run]:
    """Those that finished, and of names of which none did, those of which every method failed."""
    finished = {_name(run) for run in every if run.info.status == "FINISHED"}
    return [
        run
        for run in every
        if run.info.status == "FINISHED"
        or (_name(run) not in finished and run.info.status == "FAILED" and "failed_methods" in run.data.tags)
    ]


def _newest_of_each(ended: Sequence[Run], every: Sequence[Run], names: Mapping[str, str]) -> list[Chosen]:
    """Of each study, comparison and experiment with cases: what its newest command recorded.

    Args:
        ended: those that may be the newest; the newest first, as all of `every`.
        names: of MLflow's experiments.
    """
    chosen = []
    for source in dict.fromkeys(map(_source, ended)):
        known = [run for run in ended if _source(run) == source]
        if command := _command(known[0]):
            known = [run for run in every if _source(run) == source and _command(run) == command]
            shown = _without_repeats([run for run in known if run.info.status != "RUNNING"])
        else:  # recorded from Python: the newest of each name
            named = {_name(run): run for run in reversed(known) if not _command(run)}
            shown = list(named.values())[::-1]
        ids = {run.info.run_id for run in shown}
        of_source = [run for run in ended if _source(run) == source and not is_study(run)]
        older = sum(run.info.run_id not in ids for run in of_source)
        first, *others = (Chosen(run, names[run.info.experiment_id]) for run in shown[:_MOST])
        chosen += [replace(first, older=older, more=len(shown) - len(others) - 1), *others]
    return chosen


def _without_repeats(newest_first: Sequence[Run]) -> list[Run]:
    """Of runs of one name and config the newest that finished, or else the newest."""
    newest: dict[Hashable, Run] = {}
    for run in newest_first:
        settings = _name(run), frozenset(run.data.params.items())
        kept = newest.setdefault(settings, run)
        if kept.info.status != "FINISHED" and run.info.status == "FINISHED":
            newest[settings] = run
    return list(newest.values())


def _source(run: Run) -> tuple[str, ...]:
    """What a run is a recording of: cases of the experiment that they are of, others of their name."""
    tags, name = run.data.tags, source_of(_name(run), run.data.tags)
    return run.info.experiment_id, str(tags.get(_ROLE)), "case" if tags.get("case") else "", name


def _command(run: Run) -> str:
    return str(run.data.tags.get(COMMAND, ""))


def _by_id(client: MlflowClient, experiment_ids: list[str], ids: Sequence[str]) -> list[Run]:
    """The runs with these ids; a method's id stands for its comparison."""
    every = {run.info.run_id: run for run in runs_of(client, experiment_ids, "")}
    runs: dict[str, Run] = {}
    for each in ids:
        matches = [run_id for run_id in every if run_id.startswith(each)]
        if len(matches) != 1:
            number = "several runs begin with it: give more of it" if matches else "there is no such run"
            raise ConfigError(f"runs names '{each}', but {number}; `netsplit ui` (`make ui`) shows the ids.")
        run = every[matches[0]]
        run = every.get(run.data.tags.get(COMPARISON, ""), run)
        if not _is_shown(run):
            raise ConfigError(
                f"runs names '{each}', which is no run of NetSplit; `netsplit ui` (`make ui`) shows the ids."
            )
        runs[run.info.run_id] = run
    return list(runs.values())


def _none_finished(every: Sequence[Run], names: Sequence[str]) -> str:
    where = f"experiment '{names[0]}'" if len(names) == 1 else f"{len(names)} experiments"
    if not every:
        return f"there is no comparison or study in {where}: `netsplit compare` (`make run`) records one."
    states = [run.info.status.lower() for run in every]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"no comparison or study in {where} has finished ({counted}): give runs=<id> for one that has not."


def _is_shown(run: Run) -> bool:
    """A comparison or a study; runs of methods belong to their comparison."""
    return run.data.tags.get(_ROLE) in _ROLES


def _name(run: Run) -> str:
    return str(run.info.run_name)
