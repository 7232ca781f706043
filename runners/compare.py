"""Compare partitioning methods: plan, train and record each. `python -m runners.compare --help`.

On a cluster of this machine methods are trained; on a described one they are planned and predicted. With
`cases` one comparison is made for each, and a table of all.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from netsplit import session as sessions
from netsplit.errors import ConfigError, NetSplitError

from ._case_overrides import cases_of, published_of
from ._entry import command_line, console_of, entry, experiment, sentence
from ._own_targets import own_names

__all__ = ["again", "job", "main"]

_WIDTH = 110  # columns of a table that goes to a file or a pipe


def job(cfg: DictConfig) -> float | None:
    """Everything from the composed config to the table; used by `runners.train` too.

    Returns the least seconds of an iteration, which a sweep may minimise.
    """
    if not cfg.get("partitioner"):
        raise ConfigError("partitioner chooses no method: give at least one, as in partitioner=[auto].")
    overrides = HydraConfig.get().overrides.task
    published, requests = published_of(cfg, overrides), {}
    for name, case in cases_of(cfg, overrides).items():
        try:
            requests[name] = sessions.Request(case, cfg, published.get(name))
        except (NetSplitError, OmegaConfBaseException) as error:
            raise ConfigError(f"case {name}: {sentence(error)}") from error
    asked = list(requests.values()) or [sessions.Request(cfg)]
    for request in asked:
        request.tracker.check()  # what is wrong with it shows before the work, not after
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = console_of(_WIDTH)

    from . import _compared

    if requests:
        labels = {case: _labels(case, request.own) for case, request in requests.items()}
        _compared.each_case(requests, _title(), labels, folder, console)
        return None
    comparison = _compared.one(asked[0], _name(), _labels(), folder, console, again)
    if comparison.reason:
        raise NetSplitError(comparison.reason)
    return comparison.best_s


def again(runner: str, methods: str) -> str:
    """This command's settings for another runner and other methods, as a command line.

    What `schedule=auto` is told is left out, as methods that are compared share a schedule that is named.
    """
    schedule = _choices().get("schedule")
    left: tuple[str, ...] = ("partitioner", "resume", "checkpoint", "schedule=")
    if schedule == "auto":
        left += ("schedule", "adapt")
    kept = [word for word in HydraConfig.get().overrides.task if not word.lstrip("+~").startswith(left)]
    given = [f"schedule={schedule}"] if schedule not in (None, "auto") else []
    return command_line(runner, [*kept, *given, f"partitioner={methods}"])


@entry(config_name="config")
def main(cfg: DictConfig) -> float | None:
    return job(cfg)


def _title() -> str:
    return experiment() or _name()


def _name() -> str:
    choices = _choices()
    chosen = " · ".join(str(choices[group]) for group in sessions.NAMED if group != "scheduler")
    return chosen if experiment() is None else f"{experiment()}: {chosen}"


def _choices() -> dict[str, str | None]:
    """Config group -> the option chosen, or the name of what the command line puts in its place."""
    hydra = HydraConfig.get()
    return {**hydra.runtime.choices, **own_names(hydra.overrides.task)}


def _labels(case: str | None = None, own: Collection[str] = ()) -> dict[str, str]:
    """Config group -> the option chosen; of a case its own, or none where it only changed some keys.

    Args:
        own: the groups in which the case differs from the rest.
    """
    choices = _choices()
    labels: dict[str, Any] = {"experiment": experiment(), "case": case, "command": _command()}
    for group in sessions.NAMED:
        labels[group] = choices.get(f"{group}@cases.{case}.{group}" if group in own else group)
    return {group: str(option) for group, option in labels.items() if option is not None}


def _command() -> str:
    """What the runs of this command have in common: the name of its folder, of a sweep the sweep's."""
    hydra = HydraConfig.get()
    folder = hydra.runtime.output_dir if hydra.mode == RunMode.RUN else hydra.sweep.dir
    return Path(str(folder)).absolute().name


if __name__ == "__main__":
    main()
