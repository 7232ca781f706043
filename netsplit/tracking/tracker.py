"""Runs in MLflow: one for a comparison and one for each of its methods; metrics written in batches.

    tracker = Tracker("sqlite:///outputs/mlflow.db")
    with tracker.comparison("digits", config) as comparison:
        with comparison.method("netsplit", config) as run:
            run.metrics([("train/loss", 2.3, 0), ("train/iteration_s", 0.4, 0)])
            run.summary({"speed/samples_per_s": 156.1})

MLflow draws no charts of runs that lie under another one, so those of methods do not: each has the id of its
comparison as a tag, by which `charts_of` finds them.

A run ends FINISHED; FAILED when an exception leaves its block, which then goes on to the caller;
KILLED on Ctrl-C or SIGTERM, and its comparison with it. Whatever happens, what was logged is written first.
Runs of a process that was killed outright stay RUNNING; the next `Tracker` of the database on this machine
ends them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netsplit.errors import ConfigError, NetSplitError
from netsplit.tracking.database import (
    artifact_root,
    charts_of,
    check_address,
    open_client,
    open_experiment,
    sqlite_path,
)
from netsplit.tracking.datasets import records_of
from netsplit.tracking.host import host_tags
from netsplit.tracking.metrics import COMPARISON
from netsplit.tracking.store import (
    MAX_METRICS,
    OWNER,
    MlflowStore,
    Point,
    RunStatus,
    Store,
    StoreError,
    owner_mark,
)
from netsplit.tracking.values import LABELS, as_tags, as_yaml, dotted_keys, masked, parameters, title

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput
    from torch import Tensor, nn

__all__ = ["ComparisonRun", "MethodRun", "Models", "Tracker"]

logger = logging.getLogger(__name__)

DEFAULT_EXPERIMENT = "netsplit"
_FLUSH_S = 10.0  # buffered metrics are written at least this often while new ones arrive


@dataclass(frozen=True)
class Models:
    """Whether trained models are logged, and under which name of the registry each is a new version."""

    log: bool = False
    register: str | None = None


class MethodRun:
    """One open run: metrics are buffered, everything else is written at once."""

    def __init__(self, store: Store, name: str, run_id: str, models: Models | None = None) -> None:
        self.name = name
        self.models = models or Models()
        self.run_id = run_id
        self._store = store
        self._points: list[Point] = []
        self._flushed = time.monotonic()

    @property
    def status(self) -> RunStatus:
        """How the run ends when nothing leaves its block."""
        return "FINISHED"

    @property
    def reason(self) -> str:
        """Why it ends so, where that is no good end."""
        return ""

    def metrics(self, values: Sequence[tuple[str, float, int]]) -> None:
        """Log (key, value, step) triples, time-stamped now."""
        now = int(1000 * time.time())
        self._points += [Point(key, float(value), int(step), now) for key, value, step in values]
        if len(self._points) >= MAX_METRICS or time.monotonic() - self._flushed > _FLUSH_S:
            self.flush()

    def summary(self, values: Mapping[str, float | None]) -> None:
        """Log metrics of the whole run; None is none."""
        self.metrics([(key, value, 0) for key, value in values.items() if value is not None])

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags: nested keys dotted, nothing that is None or empty."""
        if tags := as_tags(values):
            self._store.log(self.run_id, tags=tags)

    def describe(self, markdown: str) -> None:
        """Show `markdown` on the run's page, above its metrics."""
        self.tags({"mlflow.note.content": markdown})

    def params(
        self, values: Any, file: str = "config.yaml", columns: Mapping[str, str] | None = None
    ) -> None:
        """Log a nested config whole, as a YAML artifact `file`, and as parameters.

        Args:
            columns: the parameters; None: every key of the config, dotted.
        """
        if values:
            self._store.log_text(self.run_id, masked(as_yaml(values)), file)
        logged = dotted_keys(values) if columns is None and values else columns or {}
        if logged:
            self._store.log(self.run_id, params={key: masked(value) for key, value in logged.items()})

    def datasets(self, records: list[DatasetInput]) -> None:
        """Show on the run's page what it was trained and tested on."""
        if records:
            self._store.log_datasets(self.run_id, records)

    def artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Copy a file, or the contents of a folder, into the run's artifacts.

        Raises:
            FileNotFoundError: there is nothing at `path`.
        """
        if not Path(path).exists():
            raise FileNotFoundError(f"artifact {path} of run '{self.name}' does not exist.")
        self._store.log_file(self.run_id, Path(path), folder)

    def text(self, text: str, file: str) -> None:
        """Write `text` as the artifact `file`, a path inside the run."""
        self._store.log_text(self.run_id, text, file)

    def model(self, model: nn.Module, inputs: Tensor) -> None:
        """Log a trained model, in evaluation mode on the CPU, with the signature of these example inputs.

        Where MLflow cannot, because the model cannot be exported for one, that is said, and the run goes on.
        """
        try:
            self._store.log_model(self.run_id, model, inputs, self.models.register)
        except StoreError as error:
            logger.error("the model of run '%s' is not logged: %s", self.name, error)
            self.note({"model_error": error})

    def flush(self) -> None:
        """Write the buffered metrics; they are kept, with a warning, when the database refuses them."""
        self._flushed = time.monotonic()
        try:
            while self._points:
                self._store.log(self.run_id, points=self._points[:MAX_METRICS])
                del self._points[:MAX_METRICS]
        except StoreError as error:  # a locked database or a full disk must not end a training
            logger.warning("%d metrics of run '%s' not written yet: %s", len(self._points), self.name, error)

    def note(self, tags: Mapping[str, Any]) -> None:
        """Set tags while another error is on its way, which a failing database must not hide."""
        try:
            self.tags(tags)
        except StoreError as error:
            logger.warning("tags of run '%s' are lost: %s", self.name, error)

    def close(self, status: RunStatus, reason: str = "") -> None:
        """Write what is buffered and end the run; `reason` becomes the tag ``error``. Raises nothing."""
        try:
            self.flush()
            if self._points:
                logger.error("%d metrics of run '%s' are lost.", len(self._points), self.name)
            self.note({"error": reason} if reason else {})
        finally:
            try:
                self._store.end_run(self.run_id, status)
            except StoreError as error:
                logger.error("run '%s' stays open in MLflow: %s", self.name, error)


class ComparisonRun(MethodRun):
    """The run of a comparison, beside which each `method` has its own.

    Args:
        labels: what model, dataset, cluster and schedule are called, for the names of the methods' runs.
        config: of the comparison; its ``dataset`` is the source of the data.
        watch_s: seconds between two records of the machine's load while a method runs; None: no records.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        run_id: str,
        labels: Mapping[str, str] | None = None,
        config: Any = None,
        watch_s: float | None = None,
        models: Models | None = None,
    ) -> None:
        super().__init__(store, name, run_id, models)
        self._labels = dict(labels or {})
        self._source = config.get("dataset") if hasattr(config, "get") else None
        self._watch_s = watch_s
        self._data: list[DatasetInput] = []
        self.killed = False
        self.begun = 0
        self.failed: list[str] = []
        self._why = ""  # the first of them failed, or an interrupt

    @property
    def charts(self) -> str:
        """See `charts_of`; empty where nothing is recorded."""
        return (
            charts_of(self._store.experiment_id, self.run_id) if isinstance(self._store, MlflowStore) else ""
        )

    @property
    def status(self) -> RunStatus:
        """How it ends when nothing leaves its block: failed when every method did."""
        if self.killed:
            return "KILLED"
        return "FAILED" if self.begun and len(self.failed) == self.begun else "FINISHED"

    @property
    def reason(self) -> str:
        return "" if self.status == "FINISHED" else self._why

    def data(self, data: Any) -> None:
        """Record a `netsplit.data.Data` as what this run, and those of methods after it, use."""
        if isinstance(self._store, MlflowStore):
            self._data = records_of(data, self._source)
            self.datasets(self._data)

    @contextmanager
    def method(
        self, name: str, params: Any = None, tags: Mapping[str, Any] | None = None
    ) -> Iterator[MethodRun]:
        """A run for one method. An exception marks it FAILED and is passed on: catch it outside."""
        shown = title(name, self._labels)
        own = {"role": "method", "method": name, COMPARISON: self.run_id}
        run_id = self._store.create_run(shown, _tags(own, tags))
        run = MethodRun(self._store, name, run_id, self.models)
        self.begun += 1
        try:
            with _ended(run, self._watch(run)):
                run.params(params, columns=parameters(params, self._labels, name))
                run.datasets(self._data)
                yield run
        except KeyboardInterrupt as stop:
            self.killed, self._why = True, _interrupted(stop)
            raise
        except BaseException as error:
            self.failed.append(name)
            self._why = self._why or _sentence(error)
            self.note({"failed_methods": ", ".join(self.failed)})
            raise

    def _watch(self, run: MethodRun) -> Callable[[], None]:
        return (lambda: None) if self._watch_s is None else self._store.watch(run.run_id, self._watch_s)


class Tracker:
    """The place where comparisons are recorded; opened when the first one begins.

    Args:
        uri: ``sqlite:///path`` (relative to the working folder), or a tracking server or database.
        experiment: name of the MLflow experiment, made where missing; None: netsplit.
        enabled: False records nothing and never imports MLflow.
        artifacts: folder or address for the files of a new experiment; None: beside a SQLite file, where a
            server keeps them, or ``outputs/mlartifacts`` with another database.
        system_metrics: seconds between two records of the machine's load (processors, memory, disk, network,
            GPUs) while a method runs; None: none.
        log_model: log each trained model as MLflow's PyTorch flavour does, with its signature.
        register_model: name in the registry of which each logged model is a new version; logs them too.

    Raises:
        ConfigError: `uri` is of no usable kind; at the first comparison, it cannot be opened.
    """

    def __init__(
        self,
        uri: str,
        experiment: str | None = None,
        enabled: bool = True,
        artifacts: str | None = None,
        system_metrics: float | None = None,
        log_model: bool = False,
        register_model: str | None = None,
    ) -> None:
        if register_model is not None and not register_model.strip():
            raise ConfigError("tracking.register_model is empty: give a name, or null.")
        if system_metrics is not None and not 0 < system_metrics < math.inf:
            raise ConfigError(f"tracking.system_metrics is {system_metrics}: give seconds above 0, or null.")
        self.uri = uri
        self.artifacts = artifacts
        self.system_metrics = system_metrics
        self.models = Models(enabled and (log_model or register_model is not None), register_model)
        self.experiment = experiment
        self.enabled = enabled
        self._store: Store | None = None if enabled else Store()
        self._path: Path | None = None
        if enabled:
            self._path = sqlite_path(uri)
            self.uri = uri if self._path is None else f"sqlite:///{self._path}"

    def check(self) -> None:
        """Whether runs can be kept, before there are any; makes nothing.

        Raises:
            ConfigError: not there.
        """
        if self._store is None:
            check_address(self.uri)

    def open(self, experiment: str | None = None) -> Store:
        """Connect now, rather than at the first comparison; to `experiment`, where the tracker names none."""
        self.experiment = self.experiment or experiment
        if self._store is None:
            client = open_client(self.uri)
            place = artifact_root(self.uri, self.artifacts)
            store = MlflowStore(client, open_experiment(client, self.experiment or DEFAULT_EXPERIMENT, place))
            store.end_abandoned()
            self._store = store
        return self._store

    @contextmanager
    def comparison(
        self,
        name: str,
        params: Any = None,
        tags: Mapping[str, Any] | None = None,
    ) -> Iterator[ComparisonRun]:
        """A run for a comparison, tagged with commit, versions and host.

        Args:
            params: the nested config.
            tags: those of `netsplit.tracking.values.LABELS` are parameters of all runs too; beside them this
                run has the whole config, dotted, and a method's run what tells methods apart.
        """
        store = self.open()
        labels = {key: str(value) for key, value in (tags or {}).items() if key in LABELS}
        run_id = store.create_run(name, _tags({"role": "comparison"}, tags))
        run = ComparisonRun(store, name, run_id, labels, params, self.system_metrics, self.models)
        with _ended(run):
            run.params(params, columns=(dotted_keys(params) if params else {}) | labels)
            yield run


def _tags(own: dict[str, str], tags: Mapping[str, Any] | None) -> dict[str, str]:
    given = {key: str(value) for key, value in (tags or {}).items()}
    return host_tags() | {OWNER: owner_mark()} | own | given


@contextmanager
def _ended(run: MethodRun, stop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Call `stop`, then end `run` with the status that fits how the block ended."""
    try:
        try:
            yield
        finally:
            stop()
    except KeyboardInterrupt as stop:
        run.close("KILLED", _interrupted(stop))
        raise
    except BaseException as error:
        run.close("FAILED", _sentence(error))
        raise
    run.close(run.status, run.reason)


def _interrupted(stop: KeyboardInterrupt) -> str:
    """With the name of the signal; it has none of its own for Ctrl-C."""
    return f"interrupted ({stop.args[0] if stop.args else 'Ctrl-C'})"


def _sentence(error: BaseException) -> str:
    """An exception in one line; the type's name only where the message does not stand alone."""
    message = " ".join(str(error).split())
    if isinstance(error, NetSplitError) and message:
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
