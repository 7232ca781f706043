"""Compare partitioning methods: plan, train and record each. `netsplit compare --help`.

On a cluster of this machine methods are trained; on a described one they are planned and predicted.
"""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from netsplit import session as sessions
from netsplit.errors import ConfigError, NetSplitError

from ._entry import command_line, console_of, entry, experiment
from ._own_targets import own_names

__all__ = ["again", "job", "main"]


def job(cfg: DictConfig) -> float | None:
    """Everything from the composed config to the table; used by `runners.train` too.

    Returns the least seconds of an iteration, which a sweep may minimise.
    """
    if not cfg.get("partitioner"):
        raise ConfigError("partitioner chooses no method: give at least one, as in partitioner=[auto].")
    request = sessions.Request(cfg)
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = console_of()

    from . import _compared

    comparison = _compared.one(request, _name(), _labels(), folder, console, again)
    if comparison.reason:
        raise NetSplitError(comparison.reason)
    return comparison.best_s


def again(runner: str, methods: str) -> str:
    """A command line for another runner and other methods, with this command's settings.

    What `schedule=auto` is told is left out, as methods that are compared share a schedule that is named.
    """
    schedule = _choices().get("schedule")
    left: tuple[str, ...] = ("partitioner", "resume", "checkpoint", "schedule=")
    if schedule == "auto":
        left += ("schedule", "adapt")
    kept = [word for word in HydraConfig.get().overrides.task if not word.lstrip("+~").startswith(left)]
    schedule_words = [f"schedule={schedule}"] if schedule not in (None, "auto") else []
    return command_line(runner, [*kept, *schedule_words, f"partitioner={methods}"])


main = entry(config_name="config")(job)


def _name() -> str:
    choices = _choices()
    chosen = " · ".join(str(choices[group]) for group in sessions.NAMED if group != "scheduler")
    return chosen if experiment() is None else f"{experiment()}: {chosen}"


def _choices() -> dict[str, str | None]:
    """Config group -> the option chosen, or the name of what the command line puts in its place."""
    hydra = HydraConfig.get()
    return {**hydra.runtime.choices, **own_names(hydra.overrides.task)}


def _labels() -> dict[str, str]:
    choices = _choices()
    labels = {"experiment": experiment(), "command": _command()}
    labels |= {group: choices.get(group) for group in sessions.NAMED}
    return {group: str(option) for group, option in labels.items() if option is not None}


def _command() -> str:
    """The name of this command's folder, or of the sweep's; all its runs share it."""
    hydra = HydraConfig.get()
    folder = hydra.runtime.output_dir if hydra.mode == RunMode.RUN else hydra.sweep.dir
    return Path(str(folder)).absolute().name


if __name__ == "__main__":
    main()
