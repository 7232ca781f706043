"""Compare partitioning methods: plan, train and record each. `python -m runners.compare --help`.

On a cluster of this machine methods are trained; on a described one they are planned and predicted. With
`cases` one comparison is made for each, and a table of all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from netsplit.cluster.described import ClusterDescription
from netsplit.errors import ConfigError, NetSplitError
from netsplit.experiment.case_overrides import cases_of, published_of
from netsplit.experiment.request import NAMED, Request
from runners._entry import CONF, entry, experiment, sentence

if TYPE_CHECKING:
    from netsplit.experiment.cases import Cases
    from netsplit.experiment.records import Comparison
    from netsplit.tracking import Tracker

__all__ = ["job", "main"]

log = logging.getLogger(__name__)

TABLE_WIDTH = 100  # what the table takes; a narrower terminal gets the outline
_WIDTH = 110  # columns of a table that goes to a file or a pipe
SHOWN = f"sqlite:///{CONF.parent / 'outputs' / 'mlflow.db'}"  # what 'make ui' shows


def job(cfg: DictConfig) -> float | None:
    """Everything from the composed config to the table; used by `runners.train` too.

    Returns the least seconds of an iteration, which a sweep may minimise.
    """
    if "study" in cfg:
        name = _title()
        raise ConfigError(
            f"experiment {name} is no comparison: run `python -m runners.study experiment={name}`."
        )
    if not cfg.get("partitioner"):
        raise ConfigError("partitioner chooses no method: give at least one, as in partitioner=[auto].")
    overrides = HydraConfig.get().overrides.task
    published, requests = published_of(cfg, overrides), {}
    for name, case in cases_of(cfg, overrides).items():
        try:
            requests[name] = Request(case, cfg, published.get(name))
        except (NetSplitError, OmegaConfBaseException) as error:
            raise ConfigError(f"case {name}: {sentence(error)}") from error
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    if requests:
        _each_case(requests, folder, console)
        return None
    request = Request(cfg)
    request.tracker.open(experiment())  # what is wrong with it shows before the work, not after
    comparison = _comparison(request, _name(), _labels(), folder, console)
    if reason := _reason(comparison):
        raise NetSplitError(reason)
    return comparison.best_s


def _each_case(requests: Mapping[str, Request], folder: Path, console: Console) -> None:
    """A comparison for each, and the table of all; one that fails stops no other."""
    from netsplit.experiment.cases import Cases, published_tags

    for request in requests.values():
        request.tracker.open(experiment())
    done: dict[str, Comparison] = {}
    reasons: dict[str, str] = {}
    for number, (name, request) in enumerate(requests.items(), 1):
        log.info("case %s (%d of %d)", name, number, len(requests))
        labels = _labels(name, request.own) | published_tags(request.published)
        try:
            comparison = _comparison(request, f"{_title()}: {name}", labels, folder / name, console)
        except (NetSplitError, OSError) as error:
            reasons[name] = sentence(error)
            log.error("case %s failed: %s", name, reasons[name])
        else:
            done[name] = comparison
            reasons |= {name: reason} if (reason := _reason(comparison)) else {}
    if done:
        _conclude(
            Cases(done, {name: request.published for name, request in requests.items()}), folder, console
        )
    for name, reason in reasons.items():
        counted = f"{len(reasons)} of {len(requests)} cases failed ({', '.join(reasons)})"
        raise NetSplitError(f"{counted}; {name}: {reason}")


def _conclude(cases: Cases, folder: Path, console: Console) -> None:
    from netsplit.experiment.agreement import agreement_table
    from netsplit.experiment.cases import cases_figure

    cases.write(folder)
    cases_figure(cases, folder / "cases.png")
    cases_figure(cases, folder / "cases.svg")
    console.print(cases.table(_title()))
    if cases.agreement:
        console.print(agreement_table(cases.agreement).terminal())
    console.print(f"Written to {folder}: cases.md, cases.csv, cases.png.", soft_wrap=True)


def _comparison(
    request: Request, name: str, labels: Mapping[str, str], folder: Path, console: Console
) -> Comparison:
    """One comparison of all methods, shown as a table."""
    from netsplit.experiment.comparison import compare, experiment_of
    from netsplit.experiment.forecast import forecast
    from netsplit.experiment.session import Session
    from netsplit.profile.measured import default_folder
    from runners._progress import ConsoleProgress

    tracker, cluster, profile = request.tracker, request.cluster, request.settings.profile
    asked = experiment_of(request, name, labels)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(cluster, ClusterDescription):
        comparison = forecast(asked, cluster, tracker, folder)
    else:
        kept = None if profile == "off" else default_folder()
        session = Session(cluster, folder / "workers", profile_cache=kept, refresh=profile == "refresh")
        with session, ConsoleProgress(console) as progress:
            comparison = compare(asked, session, tracker, folder, progress)
    _show(comparison, name, tracker, console)
    return comparison


def _show(comparison: Comparison, name: str, tracker: Tracker, console: Console) -> None:
    from netsplit.tracking import comparison_table, outline

    if console.width < TABLE_WIDTH:
        console.print(outline(comparison.rows), highlight=False, soft_wrap=True)
    else:
        console.print(comparison_table(comparison.rows, title=name))
    console.print(_written(comparison.folder, tracker), markup=False, soft_wrap=True)


def _written(folder: Path, tracker: Tracker) -> str:
    from netsplit.tracking.values import hidden

    runs, table = "", "'comparison.md' there is this table"
    if tracker.enabled:
        runs, place = ("'make ui' shows the runs, ", "") if tracker.uri == SHOWN else ("", tracker.uri)
        table += f"; the runs are in {hidden(place)}" if place else ""
    return f"Written to {folder}; {runs}{table}."


def _reason(comparison: Comparison) -> str:
    """Why methods failed; empty where none did."""
    failed, count = comparison.failed, len(comparison.rows)
    if not failed:
        return ""
    counted = f"{len(failed)} of {count} methods failed ({', '.join(row.method for row in failed)}); "
    return f"{counted if count > 1 else ''}{failed[0].method}: {failed[0].error}"


@entry(config_name="config")
def main(cfg: DictConfig) -> float | None:
    return job(cfg)


def _title() -> str:
    return experiment() or _name()


def _name() -> str:
    choices = HydraConfig.get().runtime.choices
    chosen = " · ".join(str(choices[group]) for group in NAMED if group != "scheduler")
    return chosen if experiment() is None else f"{experiment()}: {chosen}"


def _labels(case: str | None = None, own: Collection[str] = ()) -> dict[str, str]:
    """Config group -> the option chosen; of a case its own, or none where it only changed some keys.

    Args:
        own: the groups in which the case differs from the rest.
    """
    choices = HydraConfig.get().runtime.choices
    labels: dict[str, Any] = {"experiment": experiment(), "case": case, "command": _command()}
    for group in NAMED:
        labels[group] = choices.get(f"{group}@cases.{case}.{group}" if group in own else group)
    return {group: str(option) for group, option in labels.items() if option is not None}


def _command() -> str:
    """What the runs of this command have in common: the name of its folder, of a sweep the sweep's."""
    hydra = HydraConfig.get()
    folder = hydra.runtime.output_dir if hydra.mode == RunMode.RUN else hydra.sweep.dir
    return Path(str(folder)).absolute().name


if __name__ == "__main__":
    main()
