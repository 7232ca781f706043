"""Runs in MLflow: one for a comparison and one for each of its methods.

    tracker = Tracker("sqlite:///outputs/mlflow.db")
    with tracker.comparison("digits", config) as comparison:
        with comparison.method("netsplit", config) as run:
            run.metrics([("train/loss", 2.3, 0), ("train/iteration_s", 0.4, 0)])
            run.summary({"speed/samples_per_s": 156.1})

MLflow draws no charts of runs that lie under another one, so those of methods do not: each has the id of its
comparison as a tag, by which `charts_of` finds them. MLflow's client is used, and not its "active run", so
that no environment variable (``MLFLOW_RUN_ID``) can redirect what is written.

A run ends FINISHED; FAILED when an exception leaves its block, which then goes on to the caller;
KILLED on Ctrl-C or SIGTERM, and its comparison with it. Whatever happens, what was logged is written first.
Runs of a process that was killed outright stay RUNNING. MLflow queues metrics; all else is written at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import plain
from netsplit.tracking.database import (
    addressed,
    artifact_root,
    charts_of,
    open_client,
    open_experiment,
    sqlite_path,
)
from netsplit.tracking.host import host_tags
from netsplit.tracking.values import (
    COMPARISON,
    LABELS,
    as_tags,
    dotted_keys,
    masked,
    parameters,
    plain_key,
    sentence_of,
    title,
    words_of_failure,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import Tensor, nn

__all__ = ["ComparisonRun", "MethodRun", "Tracker"]

logger = logging.getLogger(__name__)

_MOST = 100  # parameters or tags that MLflow takes at once


class StoreError(NetSplitError):
    """What was to be recorded could not be written."""


@contextmanager
def writing(what: str, lost: str = "") -> Iterator[None]:
    """Turn whatever MLflow passes on from its database driver, disk or network into one sentence.

    That is logged where `lost` says what is lost, as beside an error on its way, and else raised.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, StoreError)
        failure = str(error) if known else f"MLflow could not record {what}: {words_of_failure(error)}"
        if not lost:
            raise StoreError(failure) from error
        logger.error("%s: %s", lost, failure)


@dataclass(eq=False)
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

    uri: str
    experiment: str | None = None
    enabled: bool = True
    artifacts: str | None = None
    system_metrics: float | None = None
    log_model: bool = False
    register_model: str | None = None

    def __post_init__(self) -> None:
        if self.system_metrics is not None and not self.system_metrics > 0:
            raise ConfigError(
                f"tracking.system_metrics is {self.system_metrics}: give seconds above 0, or null."
            )
        path = sqlite_path(self.uri) if self.enabled else None
        self.uri = self.uri if path is None else f"sqlite:///{path}"
        self.log_model = self.enabled and (self.log_model or self.register_model is not None)
        self.client: MlflowClient | None = None
        self.experiment_id = ""

    def open(self, experiment: str | None = None) -> None:
        """Connect now, rather than at the first comparison; to `experiment`, where the tracker names none."""
        self.experiment = self.experiment or experiment
        if self.enabled and self.client is None:
            client = open_client(self.uri)
            place = artifact_root(self.uri, self.artifacts)
            self.experiment_id = open_experiment(client, self.experiment or "netsplit", place)
            self.client = client

    @contextmanager
    def comparison(
        self, name: str, params: Any = None, tags: Mapping[str, Any] | None = None
    ) -> Iterator[ComparisonRun]:
        """A run for a comparison, tagged with commit, versions and host.

        Args:
            params: the nested config.
            tags: those of `netsplit.tracking.values.LABELS` are parameters of all runs too; beside them this
                run has the whole config, dotted, and a method's run what tells methods apart.
        """
        self.open()
        labels = {key: str(value) for key, value in (tags or {}).items() if key in LABELS}
        run = ComparisonRun(self, name, self.new_run(name, {"role": "comparison"}, tags), labels)
        with ended(run):
            run.params(params, dotted_keys(params or {}) | labels)
            yield run

    def new_run(self, name: str, own: Mapping[str, str], tags: Mapping[str, Any] | None) -> str:
        """The id of a new run with MLflow's tags, the host's, `own` and `tags`; empty: tracking is off."""
        if self.client is None:
            return ""
        from mlflow.tracking.context.registry import resolve_tags

        given = {plain_key(key): str(value) for key, value in (tags or {}).items()}
        every = resolve_tags({**host_tags(), **own, **given})
        with writing(f"run '{name}'"):
            return str(self.client.create_run(self.experiment_id, run_name=name, tags=every).info.run_id)


class MethodRun:
    """One open run, or nothing where tracking is off. What cannot be written raises `StoreError`, but for
    metrics: MLflow writes these in a thread of its own, so that no database makes a training wait or stop.
    """

    def __init__(self, tracker: Tracker, name: str, run_id: str = "") -> None:
        self.name = name
        self.run_id = run_id
        self.logs_model = tracker.log_model
        self._tracker = tracker

    def metrics(self, values: Sequence[tuple[str, float, int]]) -> None:
        """Queue (key, value, step) triples, time-stamped now; all are written when the run ends."""
        if self._tracker.client is not None:
            from mlflow.entities import Metric

            now = int(1000 * time.time())
            points = [Metric(plain_key(key), float(value), now, int(step)) for key, value, step in values]
            self._tracker.client.log_batch(self.run_id, metrics=points, synchronous=False)

    def summary(self, values: Mapping[str, float | None]) -> None:
        """Log metrics of the whole run; None is none."""
        self.metrics([(key, value, 0) for key, value in values.items() if value is not None])

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags: nested keys dotted, nothing that is None or empty."""
        self._log("tags", as_tags(values))

    def describe(self, markdown: str) -> None:
        """Show `markdown` on the run's page, above its metrics."""
        self.tags({"mlflow.note.content": markdown})

    def params(self, config: Any, columns: Mapping[str, str]) -> None:
        """Log a nested config whole, as the artifact ``config.yaml``, and `columns` as parameters."""
        if config:
            import yaml

            self.text(
                masked(yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)), "config.yaml"
            )
        self._log("params", {key: masked(value) for key, value in columns.items()})

    def artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Copy a file, or the contents of a folder, into the run's artifacts."""
        name = "log_artifacts" if Path(path).is_dir() else "log_artifact"
        self._send(f"artifact {path}", lambda client: getattr(client, name)(self.run_id, str(path), folder))

    def text(self, text: str, file: str) -> None:
        """Write `text` as the artifact `file`, a path inside the run."""
        self._send(f"artifact {file}", lambda client: client.log_text(self.run_id, text, file))

    def model(self, model: nn.Module, inputs: Tensor) -> None:
        """Log a trained model, in evaluation mode on the CPU, with the signature of these example inputs.

        Exported, to be read without this code and without pickle. Where it cannot be, that is said, and the
        run goes on.
        """
        try:
            self._send("the trained model", lambda client: self._log_model(client, model, inputs))
        except StoreError as error:
            logger.error("the model of run '%s' is not logged: %s", self.name, error)
            self.tags({"model_error": error})

    def _log_model(self, client: MlflowClient, model: nn.Module, inputs: Tensor) -> None:
        import mlflow.pytorch
        import torch
        from mlflow.models import Model, infer_signature

        with addressed(client.tracking_uri):
            with torch.no_grad():
                signature = infer_signature(inputs.numpy(), model(inputs).numpy())
            experiment = self._tracker.experiment_id
            logged = client.create_logged_model(experiment, "model", source_run_id=self.run_id)
            Model.log(
                None, mlflow.pytorch, name="model", model_id=logged.model_id, run_id=self.run_id,
                registered_model_name=self._tracker.register_model, pytorch_model=model, signature=signature,
                input_example=inputs.numpy(), serialization_format="pt2",
                pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
            )  # fmt: skip

    def close(self, status: Literal["FINISHED", "FAILED", "KILLED"], reason: str = "") -> None:
        """Write what is queued and end the run, whose tag ``error`` is `reason`. Raises no `StoreError`."""
        client = self._tracker.client
        if client is not None:
            import mlflow

            with writing("the error", f"tags of run '{self.name}' are lost"):
                self.tags({"error": reason})
            with writing(f"status {status}", f"run '{self.name}' stays open in MLflow"):
                with addressed(client.tracking_uri):
                    mlflow.flush_async_logging()
                client.set_terminated(self.run_id, status=status)

    def _log(self, kind: Literal["params", "tags"], values: Mapping[str, str]) -> None:
        if self._tracker.client is not None:
            from mlflow.entities import Param, RunTag

            make = Param if kind == "params" else RunTag
            entries = [make(plain_key(key), value) for key, value in values.items()]
            for start in range(0, len(entries), _MOST):
                batch: dict[str, Any] = {kind: entries[start : start + _MOST]}
                self._send(kind, lambda client: client.log_batch(self.run_id, **batch))  # noqa: B023

    def _send(self, what: str, send: Callable[[MlflowClient], object]) -> None:
        if self._tracker.client is not None:
            with writing(what):
                send(self._tracker.client)


class ComparisonRun(MethodRun):
    """The run of a comparison, beside which each `method` has its own.

    `labels` say what model, dataset, cluster and schedule are called, for the names of the methods' runs.
    """

    def __init__(self, tracker: Tracker, name: str, run_id: str, labels: Mapping[str, str]) -> None:
        super().__init__(tracker, name, run_id)
        self._labels = labels
        self._begun = 0
        self._failed: dict[str, str] = {}  # method -> why

    @property
    def charts(self) -> str:
        """See `charts_of`; empty where nothing is recorded."""
        return charts_of(self._tracker.experiment_id, self.run_id) if self._tracker.client is not None else ""

    @contextmanager
    def method(
        self, name: str, params: Any = None, tags: Mapping[str, Any] | None = None
    ) -> Iterator[MethodRun]:
        """A run for one method. An exception marks it FAILED and is passed on: catch it outside."""
        own = {"role": "method", "method": name, COMPARISON: self.run_id}
        run = MethodRun(self._tracker, name, self._tracker.new_run(title(name, self._labels), own, tags))
        self._begun += 1
        try:
            with ended(run), _load_recorded(run, self._tracker):
                run.params(params, parameters(params, self._labels, name))
                yield run
        except Exception as error:
            self._failed[name] = sentence_of(error)
            with writing("failed methods", f"tags of run '{self.name}' are lost"):
                self.tags({"failed_methods": ", ".join(self._failed)})
            raise

    def close(self, status: Literal["FINISHED", "FAILED", "KILLED"], reason: str = "") -> None:
        """End the run; FAILED also where every method failed."""
        if status == "FINISHED" and self._failed and len(self._failed) == self._begun:
            status, reason = "FAILED", next(iter(self._failed.values()))
        super().close(status, reason)


@contextmanager
def _load_recorded(run: MethodRun, tracker: Tracker) -> Iterator[None]:
    """Record the machine's load meanwhile, as often as the tracker says."""
    if tracker.client is None or tracker.system_metrics is None:
        yield
        return
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(
        run.run_id, sampling_interval=tracker.system_metrics, tracking_uri=tracker.client.tracking_uri
    )
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


@contextmanager
def ended(run: MethodRun) -> Iterator[None]:
    """End `run` with the status that fits how the block ends."""
    try:
        yield
    except KeyboardInterrupt as stop:  # with the name of the signal; it has none of its own for Ctrl-C
        run.close("KILLED", f"interrupted ({stop.args[0] if stop.args else 'Ctrl-C'})")
        raise
    except BaseException as error:
        run.close("FAILED", sentence_of(error))
        raise
    run.close("FINISHED")
