"""Compare partitioning methods: plan, train and record each. `python -m runners.compare --help`.

On a cluster of this machine methods are trained; on a described one they are planned and predicted. With
`cases` one comparison is made for each, and a table of all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from netsplit.cluster.described import ClusterDescription
from netsplit.config import Settings, build, check
from netsplit.errors import ConfigError, NetSplitError
from netsplit.experiment.case_overrides import cases_of, published_of
from runners._entry import CONF, entry, sentence, tracker_of

if TYPE_CHECKING:
    from netsplit.cluster.local import ClusterSpec
    from netsplit.experiment.cases import Cases
    from netsplit.experiment.records import Comparison
    from netsplit.optim.learning_rate import LearningRate
    from netsplit.optim.optimizers import OptimizerFactory
    from netsplit.partition.partitioner import Partitioner
    from netsplit.program.schedules import Schedule
    from netsplit.tracking import Tracker

__all__ = ["job", "main"]

log = logging.getLogger(__name__)

GROUPS = (
    "model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "scheduler", "tracking", "loss",
    "cases", "published",
)  # fmt: skip
NAMED = ("model", "dataset", "cluster", "schedule", "optimizer")
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
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    overrides = HydraConfig.get().overrides.task
    cases = cases_of(cfg, overrides)
    published = published_of(cfg, overrides)
    if cases:
        _each_case(cfg, cases, published, folder, console)
        return None
    parts = _checked(cfg)
    parts.tracker.open()  # what is wrong with it shows before the work, not after
    found = _comparison(parts, _name(), _labels(cfg), folder, console)
    if reason := _reason(found):
        raise NetSplitError(reason)
    return found.best_s


def _each_case(
    cfg: DictConfig,
    cases: Mapping[str, DictConfig],
    published: Mapping[str, Mapping[str, float]],
    folder: Path,
    console: Console,
) -> None:
    """A comparison for each, and the table of all; one that fails stops no other."""
    from netsplit.experiment.cases import Cases, published_tags

    parts = {name: _checked(case, name) for name, case in cases.items()}
    for each in parts.values():
        each.tracker.open()
    done: dict[str, Comparison] = {}
    reasons: dict[str, str] = {}
    for number, (name, case) in enumerate(cases.items(), 1):
        log.info("case %s (%d of %d)", name, number, len(cases))
        labels = _labels(case, cfg, name) | published_tags(published.get(name, {}))
        try:
            found = _comparison(parts[name], f"{_title()}: {name}", labels, folder / name, console)
        except (NetSplitError, OSError) as error:
            reasons[name] = sentence(error)
            log.error("case %s failed: %s", name, reasons[name])
        else:
            done[name] = found
            reasons |= {name: reason} if (reason := _reason(found)) else {}
    if done:
        _conclude(Cases(done, published), folder, console)
    for name, reason in reasons.items():
        share = f"{len(reasons)} of {len(cases)} cases failed ({', '.join(reasons)})"
        raise NetSplitError(f"{share}; {name}: {reason}")


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


@dataclass(frozen=True)
class _Parts:
    """What takes no time to build: a mistake in it is said before the work of any case."""

    cfg: DictConfig
    settings: Settings
    tracker: Tracker
    spec: ClusterSpec | ClusterDescription
    partitioners: dict[str, Partitioner]
    schedule: Schedule
    optimizer: OptimizerFactory
    learning_rate: LearningRate | None


def _checked(cfg: DictConfig, case: str | None = None) -> _Parts:
    try:
        settings = check(cfg, provided={"optimizer": ["params"]}, groups=GROUPS)
        parts = _Parts(
            cfg,
            settings,
            tracker_of(cfg),
            build(cfg.cluster),
            {name: build(node) for name, node in cfg.partitioner.items()},
            build(cfg.schedule),
            build(cfg.optimizer),
            build(cfg.scheduler),
        )
        if isinstance(parts.spec, ClusterDescription):
            parts.spec.require_models()
    except (NetSplitError, OmegaConfBaseException) as error:
        if case is None:
            raise
        raise ConfigError(f"case {case}: {sentence(error)}") from error
    if settings.checkpoint.folder is not None:
        _make(Path(settings.checkpoint.folder))
    return parts


def _comparison(
    parts: _Parts, name: str, labels: dict[str, str], folder: Path, console: Console
) -> Comparison:
    """One comparison of all methods, shown as a table."""
    cfg, settings, tracker, spec = parts.cfg, parts.settings, parts.tracker, parts.spec

    import torch

    from netsplit.experiment.comparison import Experiment, compare, with_length
    from netsplit.experiment.forecast import forecast
    from netsplit.experiment.session import Session
    from netsplit.optim.optimizers import for_model
    from netsplit.profile.measure.optimizer import check_optimizer
    from netsplit.profile.measured import default_folder
    from runners._progress import ConsoleProgress

    torch.manual_seed(settings.seed)
    data = build(cfg.dataset)
    _check_classes(cfg, data.num_classes)
    with torch.device("meta") if isinstance(spec, ClusterDescription) else nullcontext():
        model = build(cfg.model)
    loss = build(cfg.loss)
    optimizer = for_model(parts.optimizer, model, loss)
    check_optimizer(optimizer)
    experiment = Experiment(
        name=name,
        model=model,
        loss=loss,
        data=data,
        partitioners=parts.partitioners,
        schedule=parts.schedule,
        optimizer=optimizer,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        seed=settings.seed,
        config=OmegaConf.to_container(cfg, resolve=True),
        accumulate=settings.accumulate,
        drop_last=settings.drop_last,
        clip_norm=settings.clip_norm,
        autocast=settings.autocast,
        resume=settings.resume,
        checkpoint=settings.checkpoint,
        variable_copies=settings.variable_copies,
        learning_rate=parts.learning_rate,
        ema_decay=settings.ema_decay,
        check=settings.check,
        labels=labels,
    )
    experiment = with_length(experiment)
    log.info("%s; model of %s parameters", experiment.data.summary(), f"{_size(experiment.model):,}")
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(spec, ClusterDescription):
        found = forecast(experiment, spec, tracker, folder)
    else:
        kept = None if settings.profile == "off" else default_folder()
        session = Session(spec, folder / "workers", profile_cache=kept, refresh=settings.profile == "refresh")
        with session, ConsoleProgress(console) as progress:
            found = compare(experiment, session, tracker, folder, progress)
    _show(found, name, folder, console, tracker)
    return found


def _show(found: Comparison, name: str, folder: Path, console: Console, tracker: Tracker) -> None:
    from netsplit.tracking import comparison_table, outline

    if console.width < TABLE_WIDTH:
        console.print(outline(found.rows), highlight=False, soft_wrap=True)
    else:
        console.print(comparison_table(found.rows, title=name))
    console.print(_written(folder, tracker), markup=False, soft_wrap=True)


def _written(folder: Path, tracker: Tracker) -> str:
    from netsplit.tracking.values import hidden

    runs, table = "", "'comparison.md' there is this table"
    if tracker.enabled:
        runs, place = ("'make ui' shows the runs, ", "") if tracker.uri == SHOWN else ("", tracker.uri)
        table += f"; the runs are in {hidden(place)}" if place else ""
    return f"Written to {folder}; {runs}{table}."


def _reason(found: Comparison) -> str:
    """Why methods failed; empty where none did."""
    if not found.failed:
        return ""
    first, names = found.failed[0], ", ".join(row.method for row in found.failed)
    share = f"{len(found.failed)} of {len(found.rows)} methods failed ({names}); "
    return f"{share if len(found.rows) > 1 else ''}{first.method}: {first.error}"


@entry(config_name="config")
def main(cfg: DictConfig) -> float | None:
    return job(cfg)


def _make(folder: Path) -> None:
    """Before hours of work, rather than at the first checkpoint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"checkpoint.folder is '{folder}', which cannot be made: {error.strerror}; choose another."
        ) from error


def _title() -> str:
    return str(HydraConfig.get().runtime.choices.get("experiment") or _name())


def _name() -> str:
    choices = HydraConfig.get().runtime.choices
    chosen = " · ".join(str(choices[group]) for group in NAMED)
    experiment = choices.get("experiment")
    return chosen if experiment is None else f"{experiment}: {chosen}"


def _labels(cfg: DictConfig, rest: DictConfig | None = None, case: str | None = None) -> dict[str, str]:
    """Config group -> the option chosen; of a case its own, or none where it only changed some keys.

    Args:
        rest: the config that `case` of it makes `cfg` of.
    """
    choices = HydraConfig.get().runtime.choices
    found: dict[str, Any] = {"experiment": choices.get("experiment"), "case": case, "command": _command()}
    for group in (*NAMED, "scheduler"):
        same = rest is None or cfg[group] == rest[group]
        found[group] = choices.get(group if same else f"{group}@cases.{case}.{group}")
    return {group: str(option) for group, option in found.items() if option is not None}


def _command() -> str:
    """What the runs of this command have in common: the name of its folder, of a sweep the sweep's."""
    hydra = HydraConfig.get()
    folder = hydra.runtime.output_dir if hydra.mode == RunMode.RUN else hydra.sweep.dir
    return Path(str(folder)).absolute().name


def _check_classes(cfg: DictConfig, needed: int) -> None:
    for key in ("num_classes", "vocabulary"):
        given = cfg.model.get(key)
        if given is not None and given < needed:
            raise ConfigError(
                f"model.{key} is {given}, but the dataset has {needed} classes: give at least {needed}."
            )


def _size(model: object) -> int:
    import torch

    assert isinstance(model, torch.nn.Module)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()
