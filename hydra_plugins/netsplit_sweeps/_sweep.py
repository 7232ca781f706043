"""A multirun's jobs: what is done is left out, what fails stops no other, and one table at the end.

Every job leaves `job.json` in its folder, whatever launcher ran it: its overrides, the digest of its
composed config, and how it ended. The same command with `hydra.sweep.dir=<folder>` reads these and runs
only what is not done; jobs that run again get new numbers, so that no folder is written twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from netsplit.errors import NetSplitError
from netsplit.files import parsed_json, write_text
from netsplit.tables import Cell, Column, Table

if TYPE_CHECKING:
    from hydra.plugins.launcher import Launcher
    from hydra.types import HydraContext

__all__ = ["JobsFailed", "Mark", "Sweep", "marks_in", "run_marked"]

MARK = "job.json"
TABLE = "jobs.txt"
COLUMNS = (
    Column("job", text=True), Column("overrides", text=True), Column("outcome", text=True),
    Column("seconds", ".1f"), Column("value"), Column("folder", text=True),
)  # fmt: skip
MAX_REASON = 500  # characters; a launcher's own can have whole tracebacks in it
SAY = partial(print, flush=True)
Key = tuple[tuple[str, ...], str]

log = logging.getLogger(__name__)


class JobsFailed(Exception):
    """Some jobs of a sweep failed, the others ran; `failures` in the order of the jobs."""

    def __init__(self, failures: Sequence[BaseException]) -> None:
        super().__init__(f"{len(failures)} jobs failed")
        self.failures = list(failures)


@dataclass(frozen=True)
class Mark:
    """What a job's folder says of it; `running` for ever where its process was killed."""

    number: int
    overrides: tuple[str, ...]
    digest: str  # of the composed config
    outcome: Literal["running", "done", "failed"]
    value: float | None = None  # what the job returned, for an optimiser
    seconds: float = 0.0
    error: str = ""
    folder: str = ""

    @property
    def key(self) -> Key:
        return self.overrides, self.digest


def run_marked(
    job: Callable[[DictConfig], Any], cfg: DictConfig, in_words: Callable[[BaseException], str]
) -> Any:
    """Run one job of a multirun, and keep in its folder how it ended; answers its number, or None.

    Raises:
        Exception: the job's own, or one that says the same where that cannot be sent to another process.
    """
    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    begun = time.monotonic()
    mark = Mark(int(hydra.job.num), *_key(_as_written(hydra.overrides.task), cfg), "running")
    _write(folder, mark)
    try:
        number = _number(job(cfg))
    except Exception as error:
        spent = time.monotonic() - begun
        _write(folder, replace(mark, outcome="failed", seconds=spent, error=in_words(error)))
        portable = _portable(error)
        if portable is error:
            raise
        raise portable from None
    _write(folder, replace(mark, outcome="done", seconds=time.monotonic() - begun, value=number))
    return number


def marks_in(folder: Path) -> list[Mark]:
    """The marks under a multirun's folder, by number; what cannot be read is no mark."""
    marks = []
    for path in folder.rglob(MARK):
        try:
            values = parsed_json(path.read_text(encoding="utf-8"))
            values["overrides"] = tuple(values["overrides"])
            marks.append(Mark(**{**values, "folder": str(path.parent)}))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(marks, key=lambda mark: mark.number)


class Sweep:
    """One multirun, launched batch by batch; used by every sweeper of `hydra_plugins`.

    Args:
        say: takes a text for whoever started the multirun.
    """

    def __init__(
        self, config: DictConfig, context: HydraContext, launcher: Launcher, say: Callable[[str], None] = SAY
    ) -> None:
        self.folder = Path(str(config.hydra.sweep.dir))
        self._config = config
        self._context = context
        self._launcher = launcher
        self._say = say
        before = marks_in(self.folder)
        self._done = {mark.key: mark for mark in before if mark.outcome == "done"}
        self._number = 1 + max((mark.number for mark in before), default=-1)
        self._keys: list[Key] = []
        self._failures: list[BaseException] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(config, self.folder / "multirun.yaml")

    def composed(self, overrides: Sequence[str]) -> tuple[DictConfig, Key]:
        """What these overrides make of the config, and how their job is known again.

        Raises:
            HydraException: they cannot be composed.
        """
        config = self._context.config_loader.load_sweep_config(self._config, list(overrides))
        return config, _key(_as_written(config.hydra.overrides.task), config)

    def count(self, batch: Sequence[Sequence[str]]) -> None:
        """Take those of these jobs that are done here as asked for."""
        keys = [self.composed(overrides)[1] for overrides in batch]
        self._keys += [key for key in keys if key in self._done]

    def reject(self, mark: Mark, reason: str) -> None:
        """Count a job as failed that has ended well, as what it returned is of no use."""
        _write(Path(mark.folder), replace(mark, outcome="failed", error=reason))
        self._done.pop(mark.key, None)
        self._failures.append(NetSplitError(f"job {mark.number}: {reason}"))
        log.error("job %d: %s", mark.number, reason)

    def run(self, batch: Sequence[Sequence[str]]) -> list[Mark | None]:
        """Run the jobs of these overrides that are not done; the mark of each, None where it left none.

        Raises:
            HydraException: a job's overrides cannot be composed; none has run then.
        """
        keys = [self.composed(overrides)[1] for overrides in batch]
        self._keys += keys
        due = [list(overrides) for overrides, key in zip(batch, keys, strict=True) if key not in self._done]
        if len(due) < len(batch):
            log.info("%d of %d jobs in %s are already done.", len(batch) - len(due), len(batch), self.folder)
        if due:
            self._launch(due)
        latest = self._latest()
        self._done |= {key: mark for key, mark in latest.items() if mark.outcome == "done"}
        return [latest.get(key) for key in keys]

    def end(self, headline: str = "") -> None:
        """Show the table of all jobs of the folder, and keep it in the multirun's folder.

        Raises:
            JobsFailed: some did.
        """
        table = self._table()
        text = f"{table}\n{headline}" if headline else table
        write_text(self.folder / TABLE, f"{text}\n")
        self._say(f"\n{text}")
        if self._failures:
            self._say(self._how_to_go_on())
            raise JobsFailed(self._failures)

    def _launch(self, due: list[list[str]]) -> None:
        first, self._number = self._number, self._number + len(due)
        try:
            returns = self._launcher.launch(due, initial_job_idx=first)
        except Exception as error:  # a job's process was killed, or the launcher itself cannot go on
            begun = {mark.number for mark in marks_in(self.folder)}
            reason = " ".join(str(error).split())[:MAX_REASON] or type(error).__name__
            if not begun.intersection(range(first, self._number)):
                raise NetSplitError(f"the launcher could not start a job: {reason}") from error
            log.error("the launcher stopped: %s", reason)
            self._failures.append(NetSplitError(f"the launcher stopped before all jobs were done: {reason}"))
            return
        except KeyboardInterrupt:
            self._say(self._how_to_go_on())
            raise
        self._failures += [failure for each in returns if (failure := _failure(each)) is not None]

    def _how_to_go_on(self) -> str:
        return f"The same command with hydra.sweep.dir={self.folder} runs only the jobs that are not done."

    def _latest(self) -> dict[Key, Mark]:
        """The newest mark of each job, a done one before all others."""
        marks = {mark.key: mark for mark in marks_in(self.folder)}
        return marks | {key: mark for key, mark in self._done.items() if key in marks}

    def _table(self) -> str:
        latest = self._latest()
        asked = list(dict.fromkeys(self._keys))
        again = {overrides for overrides, _ in asked}
        marks = sorted(latest.values(), key=lambda mark: mark.number)
        earlier = {mark.overrides: mark.key for mark in marks if mark.overrides not in again}
        keys = [*earlier.values(), *asked]
        common = set.intersection(*(set(overrides) for overrides, _ in keys)) if len(keys) > 1 else set()
        rows: list[tuple[Cell, ...]] = []
        for key in keys:
            mark = latest.get(key)
            own = " ".join(each for each in key[0] if each not in common) or "-"
            rows.append(_row(mark, own, key in asked) if mark else (None, own, "not begun", None, None, None))
        shared = [f"in all: {' '.join(sorted(common))}"] if common else []
        ended = [mark for key in keys if (mark := latest.get(key)) is not None]
        reasons = [f"job {mark.number}: {mark.error}" for mark in ended if mark.error]
        return "\n".join([*shared, *Table(COLUMNS, rows).lines(), *reasons])


def _row(mark: Mark, overrides: str, asked: bool) -> tuple[Cell, ...]:
    ended = "not ended" if mark.outcome == "running" else mark.outcome
    outcome = ended if asked else f"{ended} (earlier)"
    value = None if mark.value is None else f"{mark.value:.6g}"  # what is not finite is told too
    spent = None if mark.outcome == "running" else mark.seconds
    near = os.path.relpath(mark.folder)
    folder = mark.folder if near.startswith(os.pardir) else near
    return mark.number, overrides, outcome, spent, value, folder


def _as_written(overrides: Any) -> list[str]:
    """What `${hydra:job.num}` in one of them stands for is not known before the job runs."""
    words = OmegaConf.to_container(overrides, resolve=False)
    assert isinstance(words, list)
    return [str(word) for word in words]


def _key(overrides: Iterable[str], cfg: DictConfig) -> Key:
    """Overrides and the config's digest: a changed file of `conf/` makes another job of them."""
    values = OmegaConf.to_container(cfg, resolve=False)
    assert isinstance(values, dict)
    values.pop("hydra", None)
    text = json.dumps(values, sort_keys=True, default=str)
    return tuple(sorted(overrides)), hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(folder: Path, mark: Mark) -> None:
    values = {key: value for key, value in asdict(mark).items() if key != "folder"}
    write_text(folder / MARK, json.dumps(values, indent=1) + "\n")


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _failure(done: JobReturn) -> BaseException | None:
    """What ended a job; read past `return_value`, which would print and raise it."""
    return done._return_value if done.status == JobStatus.FAILED else None


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever its own methods raise
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
