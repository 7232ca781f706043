"""Runs in MLflow: one for a comparison and one for each of its methods.

    tracker = Tracker("sqlite:///outputs/mlflow.db")
    with tracker.comparison("digits", config) as comparison:
        with comparison.method("netsplit", config) as run:
            run.metrics([("train/loss", 2.3, 0), ("train/iteration_s", 0.4, 0)])
            run.summary({"speed/samples_per_s": 156.1})

MLflow draws no charts of runs that lie under another one, so those of methods do not: each has the id of its
comparison as a tag, by which `charts_of` finds them. MLflow's client is used, and not its "active run", so
that no environment variable (``MLFLOW_RUN_ID``) can redirect what is written.

A run ends FINISHED; FAILED when an exception leaves its block, which then goes on to the caller, and that of
a comparison also when every method failed; KILLED on Ctrl-C or SIGTERM, and its comparison with it. Whatever
happens, what was logged is written first. Runs of a process that was killed outright stay RUNNING. MLflow
queues metrics; all else is written at once.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import plain
from netsplit.tracking.database import (
    COMPARISON,
    addressed,
    charts_of,
    masked,
    open_client,
    open_experiment,
    sqlite_path,
    words_of_failure,
)
from netsplit.tracking.host import host_tags

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch import Tensor, nn

__all__ = ["ComparisonRun", "MethodRun", "Tracker", "dotted"]

logger = logging.getLogger(__name__)

_LABELS = ("model", "dataset", "cluster", "schedule", "partitioner", "optimizer", "scheduler")
_TITLE = _LABELS[:4]
_OF_COMPARISON = ("tracking", "checkpoint", "resume", "profile", "partitioner", "hydra")
_NOTHING = ("", "None", "[]", "{}")


@dataclass(eq=False)
class Tracker:
    """The place where comparisons are recorded; opened when the first one begins.

    Args:
        uri: ``sqlite:///path`` (relative to the working folder), or a tracking server or database.
        experiment: name of the MLflow experiment, made where missing; None: netsplit.
        enabled: False records nothing and never imports MLflow.
        artifacts: where the files of a new experiment go; see `open_experiment`.
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
        if self.enabled and (path := sqlite_path(self.uri)) is not None:
            self.uri = f"sqlite:///{path}"
        self.log_model = self.enabled and (self.log_model or self.register_model is not None)
        self.client: MlflowClient | None = None
        self.experiment_id = ""

    def open(self, experiment: str | None = None) -> None:
        """Connect now, rather than at the first comparison; to `experiment`, where the tracker names none."""
        self.experiment = self.experiment or experiment
        if self.enabled and self.client is None:
            client = open_client(self.uri)
            self.experiment_id = open_experiment(client, self.experiment or "netsplit", self.artifacts)
            self.client = client

    @contextmanager
    def comparison(
        self, name: str, params: Any = None, tags: Mapping[str, Any] | None = None
    ) -> Iterator[ComparisonRun]:
        """A run for a comparison, tagged with commit, versions and host.

        Args:
            params: the nested config.
            tags: what model, dataset, cluster and the like are called is a parameter of all runs too; beside
                it this run has the whole config, dotted, and a method's run what tells methods apart.
        """
        self.open()
        labels = {key: str(value) for key, value in (tags or {}).items() if key in _LABELS}
        run = ComparisonRun(self, name, self.new_run(name, {"role": "comparison", **(tags or {})}), labels)
        with run:
            run.params(params, dotted(params or {}) | labels)
            yield run

    def new_run(self, name: str, tags: Mapping[str, Any]) -> str:
        """The id of a new run with MLflow's tags, the host's and `tags`; empty: tracking is off."""
        if self.client is None:
            return ""
        from mlflow.tracking.context.registry import resolve_tags

        every = resolve_tags(host_tags() | {_key(key): str(value) for key, value in tags.items()})
        with _in_a_sentence(f"run '{name}' in experiment '{self.experiment or 'netsplit'}'"):
            return str(self.client.create_run(self.experiment_id, run_name=name, tags=every).info.run_id)


class MethodRun:
    """One open run, or nothing where tracking is off, which ends with its ``with`` block.

    What cannot be written raises `NetSplitError`, but for metrics: MLflow writes these in a thread of its
    own, so that no database makes a training wait or stop.
    """

    def __init__(self, tracker: Tracker, name: str, run_id: str = "") -> None:
        self.name = name
        self.run_id = run_id
        self.failure = ""  # why the run ends FAILED, though no exception leaves its block
        self.logs_model = tracker.log_model
        self._tracker = tracker

    def metrics(self, values: Sequence[tuple[str, float, int]]) -> None:
        """Queue (key, value, step) triples, time-stamped now; all are written when the run ends."""
        if self._tracker.client is not None:
            from mlflow.entities import Metric

            now = int(1000 * time.time())
            points = [Metric(_key(key), float(value), now, int(step)) for key, value, step in values]
            self._tracker.client.log_batch(self.run_id, metrics=points, synchronous=False)

    def summary(self, values: Mapping[str, float | None]) -> None:
        """Log metrics of the whole run; None is none."""
        self.metrics([(key, value, 0) for key, value in values.items() if value is not None])

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags: nested keys dotted, nothing that is None or empty."""
        if self._tracker.client is not None:
            from mlflow.entities import RunTag

            told = {key: value for key, value in dotted(values).items() if value not in _NOTHING}
            self._send("log_batch", tags=[RunTag(_key(key), value) for key, value in told.items()])

    def describe(self, markdown: str) -> None:
        """Show `markdown` on the run's page, above its metrics."""
        self.tags({"mlflow.note.content": markdown})

    def params(self, config: Any, columns: Mapping[str, str]) -> None:
        """Log a nested config whole, as the artifact ``config.yaml``, and `columns` as parameters."""
        if self._tracker.client is not None:
            import yaml
            from mlflow.entities import Param

            if config:
                text = yaml.safe_dump(plain(config), sort_keys=False, allow_unicode=True)
                self.text(masked(text), "config.yaml")
            self._send("log_batch", params=[Param(_key(key), masked(each)) for key, each in columns.items()])

    def artifact(self, path: str | Path, folder: str | None = None) -> None:
        """Copy a file, or the contents of a folder, into the run's artifacts."""
        self._send("log_artifacts" if Path(path).is_dir() else "log_artifact", str(path), folder)

    def text(self, text: str, file: str) -> None:
        """Write `text` as the artifact `file`, a path inside the run."""
        self._send("log_text", text, file)

    def model(self, model: nn.Module, inputs: Tensor) -> None:
        """Log a trained model, in evaluation mode on the CPU, with the signature of these example inputs.

        Exported, to be read without this code and without pickle. Where it cannot be, that is said, and the
        run goes on.
        """
        client = self._tracker.client
        if client is None:
            return
        import mlflow.pytorch
        import torch
        from mlflow.models import Model, infer_signature

        try:
            with _in_a_sentence("the trained model"), addressed(client.tracking_uri), torch.no_grad():
                signature = infer_signature(inputs.numpy(), model(inputs).numpy())
                experiment = self._tracker.experiment_id
                logged = client.create_logged_model(experiment, "model", source_run_id=self.run_id)
                Model.log(
                    None, mlflow.pytorch, name="model", model_id=logged.model_id, run_id=self.run_id,
                    registered_model_name=self._tracker.register_model, pytorch_model=model,
                    signature=signature, input_example=inputs.numpy(), serialization_format="pt2",
                    pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
                )  # fmt: skip
        except NetSplitError as error:
            logger.error("the model of run '%s' is not logged: %s", self.name, error)
            self.tags({"model_error": error})

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Write what is queued and end the run; what then cannot be written is logged."""
        client = self._tracker.client
        if client is None:
            return
        import mlflow

        status, reason = "FAILED" if error is not None or self.failure else "FINISHED", self.failure
        if isinstance(error, KeyboardInterrupt):  # with the name of the signal; none for Ctrl-C
            status, reason = "KILLED", f"interrupted ({error.args[0] if error.args else 'Ctrl-C'})"
        elif error is not None:
            message = " ".join(str(error).split())
            own = isinstance(error, NetSplitError) and message
            reason = message if own else f"{type(error).__name__}: {message}".removesuffix(": ")
        for end in (
            lambda: self.tags({"error": reason}),
            lambda: mlflow.flush_async_logging(),
            lambda: client.set_terminated(self.run_id, status=status),
        ):
            try:
                with _in_a_sentence(f"how run '{self.name}' ended"), addressed(client.tracking_uri):
                    end()
            except NetSplitError as failure:
                logger.error("%s", failure)

    def _send(self, call: str, *given: Any, **named: Any) -> None:
        """Call this method of MLflow's client for this run."""
        if self._tracker.client is not None:
            what = f"artifact {given[0]}" if given else ", ".join(named)
            with _in_a_sentence(what):
                getattr(self._tracker.client, call)(self.run_id, *given, **named)


class ComparisonRun(MethodRun):
    """The run of a comparison, beside which each `method` has its own.

    `labels` say what model, dataset, cluster and schedule are called, for the names of the methods' runs.
    """

    def __init__(self, tracker: Tracker, name: str, run_id: str, labels: Mapping[str, str]) -> None:
        super().__init__(tracker, name, run_id)
        self._labels = labels

    @property
    def charts(self) -> str:
        """See `charts_of`; empty where nothing is recorded."""
        return charts_of(self._tracker.experiment_id, self.run_id) if self._tracker.client is not None else ""

    @contextmanager
    def method(
        self, name: str, params: Any = None, tags: Mapping[str, Any] | None = None
    ) -> Iterator[MethodRun]:
        """A run for one method. An exception marks it FAILED and is passed on: catch it outside.

        Its parameters are the labels and the config without what a comparison's methods have in common or
        what only another method reads.
        """
        tracker, values = self._tracker, plain(params) or {}
        methods = values.get("partitioner")
        own = {key: value for key, value in values.items() if key not in _OF_COMPARISON}
        own["partitioner"] = methods.get(name) if isinstance(methods, dict) else None
        columns = {key: each for key, each in dotted(own).items() if each not in _NOTHING and "._" not in key}
        title = " · ".join([name, *(self._labels[key] for key in _TITLE if key in self._labels)])
        own_tags = {"role": "method", "method": name, COMPARISON: self.run_id, **(tags or {})}
        run = MethodRun(tracker, name, tracker.new_run(title, own_tags))
        with ExitStack() as stack:
            stack.enter_context(run)
            if tracker.client is not None and tracker.system_metrics is not None:
                from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

                monitor = SystemMetricsMonitor(
                    run.run_id, tracker.system_metrics, tracking_uri=tracker.client.tracking_uri
                )
                monitor.start()
                stack.callback(monitor.finish)
            run.params(params, {**columns, **self._labels, "partitioner": name})
            yield run


def dotted(values: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys; a list is one value."""
    if prefix == "":
        values = plain(values)
    if not isinstance(values, dict) or (prefix and not values):
        return {prefix: str(values)}
    parts = (dotted(value, f"{prefix}.{key}" if prefix else key) for key, value in values.items())
    return {key: value for part in parts for key, value in part.items()}


def _key(name: str) -> str:
    """A name that MLflow accepts for a metric, parameter or tag; ``cpu:0`` stays as it is."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]


@contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    """Turn whatever MLflow passes on from its database driver, disk or network into one sentence."""
    try:
        yield
    except NetSplitError:
        raise
    except Exception as error:
        raise NetSplitError(f"MLflow could not record {what}: {words_of_failure(error)}") from error
