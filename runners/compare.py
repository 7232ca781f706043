"""Compare partitioning methods: plan, train and record each. `python -m runners.compare --help`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from netsplit.cluster.local import ClusterSpec
from netsplit.config import build, check
from netsplit.errors import ConfigError, NetSplitError
from runners._entry import entry

__all__ = ["job", "main"]

log = logging.getLogger(__name__)

GROUPS = ("model", "dataset", "cluster", "partitioner", "schedule", "optimizer", "tracking", "loss")
TABLE_WIDTH = 100  # what the table takes; a narrower terminal gets the outline
_WIDTH = 110  # columns of a table that goes to a file or a pipe


def job(cfg: DictConfig) -> None:
    """Everything from the composed config to the table; used by `runners.train` too."""
    settings = check(cfg, provided={"optimizer": ["params"]}, groups=GROUPS)
    folder = Path(HydraConfig.get().runtime.output_dir)
    tracker = build(cfg.tracking)
    spec = build(cfg.cluster)
    if not isinstance(spec, ClusterSpec):
        raise ConfigError(
            "cluster describes devices that are not here: choose cpu2 or cpu4, or plan on it with "
            "`python -m runners.partition`."
        )
    partitioners = {name: build(node) for name, node in cfg.partitioner.items()}
    schedule = build(cfg.schedule)
    schedule.microbatch_size(settings.batch_size)
    if settings.checkpoint.folder is not None:
        _make(Path(settings.checkpoint.folder))

    import torch

    from netsplit.comparison import Experiment, compare
    from netsplit.profile.measured import default_folder
    from netsplit.profile.optimizer import check_optimizer
    from netsplit.session import Session
    from netsplit.tracking import comparison_table, outline
    from runners._progress import ConsoleProgress

    torch.manual_seed(settings.seed)
    data = build(cfg.dataset)
    _check_classes(cfg, data.num_classes)
    optimizer = build(cfg.optimizer)
    check_optimizer(optimizer)
    experiment = Experiment(
        name=_name(cfg),
        model=build(cfg.model),
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
    )
    log.info("%s; model of %s parameters", experiment.data.summary(), f"{_size(experiment.model):,}")
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    kept = None if settings.profile == "off" else default_folder()
    session = Session(spec, folder / "workers", profile_cache=kept, refresh=settings.profile == "refresh")
    with session, ConsoleProgress(console) as progress:
        found = compare(experiment, session, tracker, folder, progress)
    if console.width < TABLE_WIDTH:
        console.print(outline(found.rows), highlight=False, soft_wrap=True)
    else:
        console.print(comparison_table(found.rows, title=experiment.name))
    console.print(f"Written to {folder}; 'make ui' shows the runs, 'comparison.md' there is this table.")
    if found.failed:
        first, names = found.failed[0], ", ".join(row.method for row in found.failed)
        share = f"{len(found.failed)} of {len(found.rows)} methods failed ({names}); "
        raise NetSplitError(f"{share if len(found.rows) > 1 else ''}{first.method}: {first.error}")


@entry(config_name="config")
def main(cfg: DictConfig) -> None:
    job(cfg)


def _make(folder: Path) -> None:
    """Before hours of work, rather than at the first checkpoint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"checkpoint.folder is '{folder}', which cannot be made: {error.strerror}; choose another."
        ) from error


def _name(cfg: DictConfig) -> str:
    choices = HydraConfig.get().runtime.choices
    return ", ".join(
        str(choices[group]) for group in ("model", "dataset", "cluster", "schedule", "optimizer")
    )


def _check_classes(cfg: DictConfig, needed: int) -> None:
    given = cfg.model.get("num_classes")
    if given is not None and given < needed:
        raise ConfigError(
            f"model.num_classes is {given}, but the dataset has {needed} classes: give at least {needed}."
        )


def _size(model: object) -> int:
    import torch

    assert isinstance(model, torch.nn.Module)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    main()
