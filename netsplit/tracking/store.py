"""Where runs are written: `Store` writes nothing, `MlflowStore` to MLflow.

The MLflow client is used rather than MLflow's "active run", so that no environment variable
(``MLFLOW_RUN_ID``, ``MLFLOW_EXPERIMENT_NAME``) can redirect what is written.
"""

from __future__ import annotations

import getpass
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

from netsplit.errors import NetSplitError
from netsplit.tracking.values import chunks, plain_key, shortened, words_of_failure

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput
    from torch import Tensor, nn

__all__ = [
    "OWNER",
    "MlflowStore",
    "Point",
    "RunStatus",
    "Store",
    "StoreError",
    "addressed",
    "is_gone",
    "owner_mark",
]

logger = logging.getLogger(__name__)

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]

OWNER = "controller"  # tag: the process that writes the run
MAX_METRICS = 1000  # MLflow's limits for one call of log_batch
MAX_PARAMS = 100
MAX_VALUE = 6000  # characters of a parameter
MAX_TAG = 8000  # characters of a tag
_PAGE = 1000  # of experiments, of runs that are still open


class StoreError(NetSplitError):
    """What was to be recorded could not be written."""


@dataclass(frozen=True)
class Point:
    """One value of one metric; `timestamp_ms` since 1970."""

    key: str
    value: float
    step: int
    timestamp_ms: int


class Store:
    """Runs by id; this one writes nothing: tracking switched off.

    Every call of one that writes has written before it returns, or raises `StoreError`.
    """

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        return ""

    def log(
        self,
        run_id: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None: ...

    def log_file(self, run_id: str, path: Path, folder: str | None) -> None: ...

    def log_text(self, run_id: str, text: str, file: str) -> None: ...

    def log_datasets(self, run_id: str, records: list[DatasetInput]) -> None: ...

    def log_model(self, run_id: str, model: nn.Module, inputs: Tensor, registered: str | None) -> None: ...

    def watch(self, run_id: str, every_s: float) -> Callable[[], None]:
        """Record the machine's load every so many seconds, and once more when what comes back is called.

        The processor use of that last record is the mean since `watch`.
        """
        return lambda: None

    def end_run(self, run_id: str, status: RunStatus) -> None: ...


class MlflowStore(Store):
    """Writes to one experiment of an MLflow tracking server or database, within MLflow's limits a call."""

    def __init__(self, client: MlflowClient, experiment_id: str) -> None:
        self.client = client
        self.experiment_id = experiment_id

    def create_run(self, name: str, tags: Mapping[str, str]) -> str:
        given = {
            "mlflow.user": _user(),
            "mlflow.source.name": Path(sys.argv[0]).name,
            "mlflow.source.type": "LOCAL",
        }
        with _writing(f"run '{name}'"):
            run = self.client.create_run(self.experiment_id, run_name=name, tags=given)
        run_id = str(run.info.run_id)
        self.log(run_id, tags=tags)
        return run_id

    def log(
        self,
        run_id: str,
        *,
        points: Sequence[Point] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(plain_key(p.key), p.value, p.timestamp_ms, p.step) for p in points]
        entries = {plain_key(key): shortened(value, MAX_VALUE) for key, value in (params or {}).items()}
        labels = {plain_key(key): shortened(value, MAX_TAG) for key, value in (tags or {}).items()}
        with _writing("metrics, parameters or tags"):
            for some_metrics in chunks(metrics, MAX_METRICS):
                self.client.log_batch(run_id, metrics=some_metrics)
            for some_params in chunks([Param(key, value) for key, value in entries.items()], MAX_PARAMS):
                self.client.log_batch(run_id, params=some_params)
            for some_tags in chunks([RunTag(key, value) for key, value in labels.items()], MAX_PARAMS):
                self.client.log_batch(run_id, tags=some_tags)

    def log_file(self, run_id: str, path: Path, folder: str | None) -> None:
        with _writing(f"artifact {path}"):
            if path.is_dir():
                self.client.log_artifacts(run_id, str(path), folder)
            else:
                self.client.log_artifact(run_id, str(path), folder)

    def log_text(self, run_id: str, text: str, file: str) -> None:
        with _writing(f"artifact {file}"):
            self.client.log_text(run_id, text, file)

    def log_datasets(self, run_id: str, records: list[DatasetInput]) -> None:
        with _writing("datasets"):
            self.client.log_inputs(run_id, records)

    def log_model(self, run_id: str, model: nn.Module, inputs: Tensor, registered: str | None) -> None:
        """As MLflow's PyTorch flavour does, exported: to be read without this code and without pickle."""
        import mlflow.pytorch
        import torch
        from mlflow.models import Model, infer_signature

        with _writing("the trained model"), addressed(self.client.tracking_uri):
            with torch.no_grad():
                signature = infer_signature(inputs.numpy(), model(inputs).numpy())
            logged = self.client.create_logged_model(self.experiment_id, "model", source_run_id=run_id)
            Model.log(
                None,
                mlflow.pytorch,
                name="model",
                model_id=logged.model_id,
                run_id=run_id,
                registered_model_name=registered,
                pytorch_model=model,
                signature=signature,
                input_example=inputs.numpy(),
                serialization_format="pt2",
                pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
            )

    def watch(self, run_id: str, every_s: float) -> Callable[[], None]:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        try:
            with _writing("the machine's load"):
                monitor = SystemMetricsMonitor(
                    run_id, sampling_interval=every_s, tracking_uri=self.client.tracking_uri
                )
        except StoreError as error:  # of no weight beside the run itself
            logger.warning("%s", error)
            return lambda: None
        psutil.cpu_percent()  # counts from here to the next call in this thread, which is in `finish`
        monitor.start()

        def finish() -> None:
            monitor.finish()
            try:
                with _writing("the machine's load"):
                    for each in monitor.monitors:
                        each.clear_metrics()
                    monitor.collect_metrics()
                    monitor.publish_metrics(monitor.aggregate_metrics())
                    monitor.mlflow_logger.flush()
            except StoreError as error:
                logger.warning("%s", error)

        return finish

    def end_abandoned(self) -> None:
        """Mark as failed what processes of this machine left RUNNING that are gone; best effort."""
        try:
            with _writing("the end of abandoned runs"):
                every = [each.experiment_id for each in self.client.search_experiments(max_results=_PAGE)]
                runs = self.client.search_runs(every, "attributes.status = 'RUNNING'", max_results=_PAGE)
            for run in runs:
                if is_gone(run.data.tags.get(OWNER, "")):
                    self.log(run.info.run_id, tags={"error": "its process was killed"})
                    self.end_run(run.info.run_id, "FAILED")
        except StoreError as error:
            logger.warning("%s", error)

    def end_run(self, run_id: str, status: RunStatus) -> None:
        with _writing(f"status {status}"):
            self.client.set_terminated(run_id, status=status)


@contextmanager
def _writing(what: str) -> Iterator[None]:
    """Turn whatever MLflow passes on from its database driver, disk or network into one sentence."""
    try:
        yield
    except Exception as error:
        raise StoreError(f"MLflow could not record {what}: {words_of_failure(error)}") from error


@contextmanager
def addressed(uri: str) -> Iterator[None]:
    """Where MLflow's functions that take no client write meanwhile; the environment is left as it was."""
    from mlflow.tracking._tracking_service.utils import _use_tracking_uri

    variable = "MLFLOW_TRACKING_URI"
    before = os.environ.get(variable)
    try:
        with _use_tracking_uri(uri):
            yield
    finally:
        if before is not None:
            os.environ[variable] = before


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "unknown"


def owner_mark(pid: int | None = None) -> str:
    """Host, boot and process namespace, process and when it began: no other process ever has the same."""
    process = psutil.Process(pid)
    return f"{_process_space()} {process.pid} {process.create_time():.2f}"


def is_gone(mark: str) -> bool:
    """Whether the process of a mark is known to have ended; of another machine's, nothing is known."""
    here, *process = mark.rsplit(" ", 2)
    if here != _process_space() or len(process) != 2:
        return False
    try:
        running = psutil.Process(int(process[0]))
        return f"{running.create_time():.2f}" != process[1] or running.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _process_space() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = f"{psutil.boot_time():.0f}", "-"
    return f"{platform.node()} {boot} {namespace}"
