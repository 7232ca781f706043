"""Answer a question about models, devices or links: `python -m reproduce --help`.

study:
  _target_: reproduce.edge_bytes  # what is asked
  cases:                          # of what, by name
    mine: {model: ..., dataset: ..., batch_size: 64}
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build
from netsplit.errors import ConfigError
from runners._entry import CONF, console_of, entry, experiment, settings_of

__all__ = ["Settings", "comparison_among", "job", "main", "studies"]

log = logging.getLogger(__name__)

STUDIES = Path(__file__).resolve().parent / "conf"
STUDY, EXPERIMENT = "study", "experiment"
GROUPS = (STUDY, "tracking")
_WIDTH = 120  # columns of a table that goes to a file or a pipe


@dataclass(frozen=True)
class Settings:
    """The top-level keys of `reproduce/conf/study.yaml` that belong to no group."""

    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}: give at least 0.")


def job(cfg: DictConfig) -> None:
    """Everything from the composed config to the table, the files and the run in MLflow."""
    settings_of(cfg, "reproduce.command.Settings", ["seed"], GROUPS)
    if cfg.get(STUDY) is None:
        raise ConfigError(f"no study is chosen: give experiment=<name>, one of {', '.join(studies())}.")
    config: Any = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(config, dict)
    tracker = build(cfg.tracking)
    folder = Path(HydraConfig.get().runtime.output_dir)

    from reproduce.question import question
    from reproduce.render import record, write

    ask = question(cfg[STUDY], folder / "workers")
    tracker.open(experiment())  # what is wrong with it shows before the work, not after
    result = ask()
    files = write(result, folder)
    console = console_of(_WIDTH)
    console.print(result.table.terminal())
    names = ", ".join(path.name for path in files if path.suffix in (".md", ".csv", ".png"))
    console.print(f"Written to {folder}: {names}.", highlight=False, soft_wrap=True)
    record(result, tracker, experiment() or STUDY, config, files)


OmegaConf.register_new_resolver("netsplit_conf", lambda: str(CONF), replace=True)
_command = entry(config_name="study", conf=STUDIES)(job)


def main() -> None:
    """The command; comparisons are refused before Hydra fails on the groups that they override."""
    wrong = comparison_among(sys.argv[1:])
    if wrong is not None:
        sys.stderr.write(
            f"error: experiment={wrong} is a comparison of methods, not a study: run it with "
            f"`netsplit compare experiment={wrong}`.\n"
        )
        sys.exit(2)
    _command()


def studies() -> list[str]:
    """The experiments that have a `study:` node."""
    return sorted(path.stem for path in (STUDIES / EXPERIMENT).glob("*.yaml"))


def comparison_among(words: Sequence[str]) -> str | None:
    """The first experiment on a command line that is a comparison."""
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        for name in value.split(",") if key == EXPERIMENT else ():
            if (CONF / EXPERIMENT / f"{name.strip()}.yaml").is_file():
                return name.strip()
    return None
