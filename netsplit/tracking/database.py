"""MLflow's database or server: a SQLite file appears whole, and what cannot be used is refused at once."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from netsplit.errors import ConfigError

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "COMPARISON", "addressed", "charts_of", "masked", "newest_charts", "open_client", "open_experiment",
    "require_database", "server_of", "sqlite_path", "words_of_failure",
]  # fmt: skip

logger = logging.getLogger(__name__)

COMPARISON = "comparison"
"""The tag of a method's run with the id of its comparison's run."""
_SQLITE = "sqlite:///"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS": "5",  # metrics of so long are written together
    "MLFLOW_ASYNC_LOGGING_THREADPOOL_SIZE": "1",  # SQLite takes one writer at a time
}
# While training MLflow shall be patient; when it connects, it says at once what is wrong.
_IMPATIENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "PGCONNECT_TIMEOUT": "5"
}  # fmt: skip
# Without this tag the UI takes training runs for conversations with a language model.
_TRAINING = {"mlflow.experimentKind": "custom_model_development"}


def masked(text: str) -> str:
    """`text` without the passwords of addresses: ``postgresql://me:***@host``."""
    return re.sub(r"(://[^:/\s]*:)(?:(?!://)\S)+@", r"\1***@", text)  # to the last @: passwords hold others


def words_of_failure(error: Exception) -> str:
    """What MLflow passes on from its database driver, disk or network, in one line without passwords."""
    lines = str(error).strip().splitlines()
    # SQLAlchemy's own line comes before the driver's.
    return masked(next((each for each in lines if not each.startswith("(raised")), type(error).__name__))


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of a SQLite database; None of another kind of address that MLflow knows.

    Raises:
        ConfigError: it knows no such address, and would make a folder of that name.
    """
    name = uri.removeprefix(_SQLITE)
    if name not in ("", uri) and "?" not in name:
        return Path(name).absolute()
    if not re.match(r"https?://|(postgresql|mysql|mssql)(\+\w+)?://", uri):
        raise ConfigError(
            f"tracking uri '{masked(uri)}' is not one MLflow can use: give {_SQLITE}outputs/mlflow.db, the "
            "http(s) address of a tracking server, or a database address (postgresql, mysql, mssql)."
        )
    return None


def require_database(uri: str) -> None:
    """Raises ConfigError: `uri` names a database file that is not there."""
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise ConfigError(
            f"there is no database {path}: `netsplit compare` (`make run`) records one, or set tracking.uri."
        )


def open_client(uri: str) -> MlflowClient:
    """A client for `uri`; a SQLite database that is not there yet is made, with its folder.

    Raises:
        ConfigError: the address cannot be used; says why.
    """
    path = sqlite_path(uri)
    try:
        if path is None:
            return _connect(uri)
        if not path.exists():
            _create(path)
        return _connect(f"{_SQLITE}{path}")
    except Exception as error:  # MLflow passes on whatever its database driver or HTTP library raises
        why = words_of_failure(error).rstrip(".")
        raise ConfigError(
            f"tracking uri '{masked(uri)}' cannot be opened: {why}; set another or tracking=none."
        ) from error


def open_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """The id of an experiment, made where missing.

    Args:
        artifacts: folder or address for the files of a new one; None: beside a SQLite file, where a server
            keeps them, or ``outputs/mlartifacts`` with another database.
    """
    from mlflow.exceptions import MlflowException

    if (experiment := client.get_experiment_by_name(name)) is None:
        path, folder = sqlite_path(client.tracking_uri), artifacts
        if folder is None and not client.tracking_uri.startswith("http"):
            folder = str(Path("outputs", "mlartifacts") if path is None else path.parent / "mlartifacts")
        if folder is not None:
            folder = folder.rstrip("/") if "://" in folder else Path(folder).absolute().as_uri()
            folder += "/" + quote(re.sub(r"[^\w\-.]+", "_", name))
        try:
            return str(client.create_experiment(name, artifact_location=folder, tags=_TRAINING))
        except MlflowException:
            if (experiment := client.get_experiment_by_name(name)) is None:  # no other process was faster
                raise
    return str(experiment.experiment_id)


@contextmanager
def addressed(uri: str) -> Iterator[None]:
    """Have MLflow's functions that take no client use `uri` meanwhile; the environment stays as it was."""
    from mlflow.tracking._tracking_service.utils import _use_tracking_uri

    with patch.dict(os.environ), _use_tracking_uri(uri):
        yield


def charts_of(experiment_id: str, run_id: str) -> str:
    """What follows a server's address: the charts of the methods of the comparison with this run's id."""
    query = {
        "workflowType": "machine_learning",
        "compareRunsMode": "CHART",
        "searchFilter": f"tags.{COMPARISON}='{run_id}'",
    }
    return f"#/experiments/{quote(experiment_id)}/runs?{urlencode(query, quote_via=quote)}"


def newest_charts(uri: str) -> str | None:
    """The charts of the newest comparison that is recorded at `uri`; None where there is none."""
    client = open_client(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    condition = f"tags.role = 'method' and tags.{COMPARISON} LIKE '%'"
    newest = ["attributes.start_time DESC"]
    for run in client.search_runs(experiments, condition, max_results=1, order_by=newest):
        return charts_of(run.info.experiment_id, run.data.tags[COMPARISON])
    return None


def server_of(uri: str) -> str:
    """A tracking server's address for a link: without name and password; empty where `uri` is of none."""
    if not uri.startswith("http"):
        return ""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/") + "/"


def _create(path: Path) -> None:
    """Make the database beside its place and then link it there, so that it is whole when it appears."""
    logger.info("Creating the MLflow database %s (once; takes up to 15 s).", path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        scratch = Path(folder) / "new.db"
        _connect(f"{_SQLITE}{scratch}")
        try:
            os.link(scratch, path)  # unlike a rename, leaves what another process put there meanwhile
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            scratch.replace(path)


def _connect(uri: str) -> MlflowClient:
    """A client that has asked once; raises whatever MLflow passes on."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    from mlflow import MlflowClient
    from mlflow.store.db import utils

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # tracebacks of what it raises too
    for handler in logging.getLogger("mlflow").handlers:
        handler.addFilter(_in_one_line)
    with patch.dict(os.environ, _IMPATIENT), patch.object(utils, "MAX_RETRY_COUNT", 0, create=True):
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    return client


def _in_one_line(record: logging.LogRecord) -> bool:
    """MLflow's warnings name the address of every request with its password, and whole statements of SQL."""
    record.msg, record.args = masked(record.getMessage()).partition("\n[SQL")[0], ()
    return True
