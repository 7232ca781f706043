"""Compare partitioning methods: plan, train and record each. `python -m runners.compare --help`.

On a cluster of this machine methods are trained; on a described one they are planned and predicted. With
`cases` one comparison is made for each, and a table of all.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from netsplit.cluster.described import ClusterDescription
from netsplit.config import build, check
from netsplit.errors import ConfigError, NetSplitError
from runners._cases import cases_of, published_of
from runners._entry import entry

if TYPE_CHECKING:
    from netsplit.records import Comparison

__all__ = ["job", "main"]

log = logging.getLogger(__name__)

GROUPS = (
    "model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "tracking", "loss", "cases",
    "published",
)  # fmt: skip
NAMED = ("model", "dataset", "cluster", "schedule", "optimizer")
TABLE_WIDTH = 100  # what the table takes; a narrower terminal gets the outline
_WIDTH = 110  # columns of a table that goes to a file or a pipe


def job(cfg: DictConfig) -> float | None:
    """Everything from the composed config to the table; used by `runners.train` too.

    Returns the least seconds of an iteration, which a sweep may minimise.
    """
    if "study" in cfg:
        name = _title()
        raise ConfigError(
            f"experiment {name} is no comparison: run `python -m runners.study experiment={name}`."
        )
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    cases = cases_of(cfg)
    published_of(cfg)  # a wrong figure is refused before hours of work
    if not cases:
        found = _comparison(cfg, _name(), _labels(), folder, console)
        _require_all(found)
        return found.best_s
    done: dict[str, Comparison] = {}
    for number, (name, case) in enumerate(cases.items(), 1):
        log.info("case %s (%d of %d)", name, number, len(cases))
        labels = _labels(name, map(str, cfg.cases[name] or {}))
        done[name] = _comparison(case, f"{_title()}: {name}", labels, folder / name, console)
    _conclude(cfg, done, folder, console)
    return None


def _conclude(cfg: DictConfig, done: dict[str, Comparison], folder: Path, console: Console) -> None:
    from netsplit.cases import Cases, cases_figure

    cases = Cases(done, published_of(cfg))
    cases.write(folder)
    cases_figure(cases, folder / "cases.png")
    cases_figure(cases, folder / "cases.svg")
    console.print(cases.table(_title()))
    console.print(f"Written to {folder}: cases.md, cases.csv, cases.png.", soft_wrap=True)
    for found in done.values():
        _require_all(found)


def _comparison(
    cfg: DictConfig, name: str, labels: dict[str, str], folder: Path, console: Console
) -> Comparison:
    """One comparison of all methods, shown as a table."""
    settings = check(cfg, provided={"optimizer": ["params"]}, groups=GROUPS)
    tracker = build(cfg.tracking)
    spec = build(cfg.cluster)
    partitioners = {name: build(node) for name, node in cfg.partitioner.items()}
    schedule = build(cfg.schedule)
    schedule.microbatch_size(settings.batch_size)
    if settings.checkpoint.folder is not None:
        _make(Path(settings.checkpoint.folder))

    import torch

    from netsplit.comparison import Experiment, compare
    from netsplit.forecast import forecast
    from netsplit.profile.measured import default_folder
    from netsplit.profile.optimizer import check_optimizer
    from netsplit.session import Session
    from runners._progress import ConsoleProgress

    torch.manual_seed(settings.seed)
    data = build(cfg.dataset)
    _check_classes(cfg, data.num_classes)
    optimizer = build(cfg.optimizer)
    check_optimizer(optimizer)
    planned = isinstance(spec, ClusterDescription)
    with torch.device("meta") if planned else nullcontext():
        model = build(cfg.model)
    experiment = Experiment(
        name=name,
        model=model,
        loss=build(cfg.loss),
        data=data,
        partitioners=partitioners,
        schedule=schedule,
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
        labels=labels,
    )
    log.info("%s; model of %s parameters", experiment.data.summary(), f"{_size(experiment.model):,}")
    folder.mkdir(parents=True, exist_ok=True)
    if planned:
        found = forecast(experiment, spec, tracker, folder)
    else:
        kept = None if settings.profile == "off" else default_folder()
        session = Session(spec, folder / "workers", profile_cache=kept, refresh=settings.profile == "refresh")
        with session, ConsoleProgress(console) as progress:
            found = compare(experiment, session, tracker, folder, progress)
    _show(found, name, folder, console, tracker.enabled)
    return found


def _show(found: Comparison, name: str, folder: Path, console: Console, recorded: bool) -> None:
    from netsplit.tracking import comparison_table, outline

    if console.width < TABLE_WIDTH:
        console.print(outline(found.rows), highlight=False, soft_wrap=True)
    else:
        console.print(comparison_table(found.rows, title=name))
    runs = "'make ui' shows the runs, " if recorded else ""
    console.print(f"Written to {folder}; {runs}'comparison.md' there is this table.")


def _require_all(found: Comparison) -> None:
    """Raises NetSplitError: a method failed."""
    if found.failed:
        first, names = found.failed[0], ", ".join(row.method for row in found.failed)
        share = f"{len(found.failed)} of {len(found.rows)} methods failed ({names}); "
        raise NetSplitError(f"{share if len(found.rows) > 1 else ''}{first.method}: {first.error}")


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


def _labels(case: str | None = None, changed: Iterable[str] = ()) -> dict[str, str]:
    """Config group -> the option chosen; of a case its own, or none where it only changed some keys."""
    choices, without = HydraConfig.get().runtime.choices, set(changed)
    found = {group: str(choices[group]) for group in NAMED if group not in without}
    if choices.get("experiment") is not None:
        found["experiment"] = str(choices["experiment"])
    if case is not None:
        own = {group: choices.get(f"{group}@cases.{case}.{group}") for group in NAMED}
        found |= {"case": case} | {group: str(option) for group, option in own.items() if option is not None}
    return found


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
