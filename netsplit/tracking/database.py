"""MLflow's database or server: its address is checked first, a SQLite file is made whole or not at all."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import check_writable
from netsplit.tracking.values import COMPARISON, masked, words_of_failure

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "addressed", "artifact_root", "charts_of", "check_address", "newest_charts", "open_client",
    "open_experiment", "require_database", "server_of", "sqlite_path",
]  # fmt: skip

logger = logging.getLogger(__name__)

_SQLITE = "sqlite:///"
_SERVERS = ("http://", "https://")
_DATABASES = ("postgresql", "mysql", "mssql")
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS": "5",  # metrics of so long are written together
    "MLFLOW_ASYNC_LOGGING_THREADPOOL_SIZE": "1",  # SQLite takes one writer at a time
}
# Without this tag the UI takes training runs for conversations with a language model.
_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
_CONNECT_S = 5  # a server that does not answer in this time is reported at once


def require_database(uri: str) -> None:
    """Raises ConfigError: `uri` names a database file that is not there."""
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise ConfigError(
            f"there is no database {path}: `netsplit compare` (`make run`) records one, or set tracking.uri."
        )


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of a SQLite database; None of another kind of address that MLflow knows."""
    if uri.startswith(_SQLITE):
        name = uri.removeprefix(_SQLITE)
        if not name or re.search(r"^(file:|:memory:)|\?|%[0-9A-Fa-f]{2}", name):
            raise ConfigError(
                f"tracking uri '{uri}' names no file: give {_SQLITE} and a path, without options and escapes "
                f"as %20, such as {_SQLITE}outputs/mlflow.db."
            )
        return Path(name).absolute()
    if not uri.startswith(_SERVERS) and _kind_of(uri) not in _DATABASES:
        raise ConfigError(
            f"tracking uri '{masked(uri)}' is not one MLflow can use: give {_SQLITE}outputs/mlflow.db, "
            f"the http(s) address of a tracking server, or a database address ({', '.join(_DATABASES)})."
        )
    return None


def open_client(uri: str) -> MlflowClient:
    """A client for `uri`; a SQLite database that is not there yet is made, with its folder.

    Raises:
        ConfigError: the address cannot be used; says why.
    """
    check_address(uri)
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        _create(path)
    return _connect(uri if path is None else f"{_SQLITE}{path}")


def check_address(uri: str) -> None:
    """Makes nothing.

    Raises:
        ConfigError: runs cannot be kept at `uri`; says why, long before MLflow's own retries end.
    """
    path = sqlite_path(uri)
    if uri.startswith(_SERVERS):
        _check_server(uri)
    elif path is None:
        _check_database(uri)
    else:
        try:
            check_writable(path)
        except NetSplitError as error:
            raise ConfigError(f"tracking uri '{uri}' cannot be used: {error}") from error
        if path.exists():
            if not os.access(path, os.W_OK):
                raise ConfigError(f"{path} cannot be written: change its permissions, or set tracking.uri.")
            _check_database(f"{_SQLITE}{path}", "PRAGMA schema_version")


def artifact_root(uri: str, given: str | None) -> str | None:
    """Where files of runs go: `given`, else beside a SQLite file; None: where the server keeps them."""
    if given is not None:
        return given if "://" in given else Path(given).absolute().as_uri()
    path = sqlite_path(uri)
    if path is None and uri.startswith(_SERVERS):
        return None
    return ((path.parent if path is not None else Path("outputs").absolute()) / "mlartifacts").as_uri()


def open_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """The id of an experiment, made where missing with its files under `artifacts`/<name>.

    Raises:
        ConfigError: the experiment was deleted in the UI.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        bare = quote(re.sub(r"[^\w\-.]+", "_", name))
        folder = None if artifacts is None else f"{artifacts.rstrip('/')}/{bare}"
        try:
            return str(client.create_experiment(name, artifact_location=folder, tags=_TRAINING))
        except MlflowException:  # another process was faster
            experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    if experiment.lifecycle_stage == "deleted":
        raise ConfigError(
            f"experiment '{name}' was deleted: choose another tracking.experiment, "
            f"or run `mlflow experiments restore -x {experiment.experiment_id}`."
        )
    return str(experiment.experiment_id)


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


def charts_of(experiment_id: str, run_id: str) -> str:
    """What follows a server's address: the charts of the methods of the comparison with this run's id."""
    query = {
        "workflowType": "machine_learning",
        "compareRunsMode": "CHART",
        "searchFilter": f"tags.{COMPARISON}='{run_id}'",
    }
    return f"#/experiments/{quote(experiment_id)}/runs?{urlencode(query, quote_via=quote)}"


def server_of(uri: str) -> str:
    """A tracking server's address for a link: without name and password; empty where `uri` is of none."""
    if not uri.startswith(_SERVERS):
        return ""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/") + "/"


def newest_charts(uri: str) -> str | None:
    """The charts of the newest comparison that is recorded at `uri`; None where there is none."""
    client = open_client(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    condition = f"tags.role = 'method' and tags.{COMPARISON} LIKE '%'"
    newest = ["attributes.start_time DESC"]
    for run in client.search_runs(experiments, condition, max_results=1, order_by=newest):
        return charts_of(run.info.experiment_id, run.data.tags[COMPARISON])
    return None


def _kind_of(uri: str) -> str:
    return uri.partition("://")[0].partition("+")[0]


def _connect(uri: str, called: str | None = None) -> MlflowClient:
    """A client for `uri`, which errors call by another name where it is not the user's."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    from mlflow import MlflowClient

    for noisy in ("alembic", "mlflow", "git"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # tracebacks of what it raises too
    for handler in logging.getLogger("mlflow").handlers:
        handler.addFilter(_in_one_line)
    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    except Exception as error:  # MLflow passes on whatever its database driver or HTTP library raises
        raise _cannot_be_opened(called or uri, error) from error
    return client


def _in_one_line(record: logging.LogRecord) -> bool:
    """MLflow's warnings name the address of every request with its password, and whole statements of SQL."""
    record.msg, record.args = masked(record.getMessage()).partition("\n[SQL")[0], ()
    return True


def _cannot_be_opened(uri: str, error: Exception) -> ConfigError:
    return ConfigError(f"tracking uri '{masked(uri)}' cannot be opened: {words_of_failure(error)}")


def _create(path: Path) -> None:
    """Make the database beside its place and then link it there, so that it is whole when it appears."""
    address = f"{_SQLITE}{path}"
    logger.info("Creating the MLflow database %s (once; takes up to a quarter of a minute).", path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            scratch = Path(folder) / "new.db"
            _connect(f"{_SQLITE}{scratch}", address)
            try:
                os.link(scratch, path)  # unlike a rename, leaves what another process put there meanwhile
            except FileExistsError:
                return
            except OSError:  # a file system without hard links
                scratch.replace(path)
    except OSError as error:
        raise _cannot_be_opened(address, error) from error


def _check_database(uri: str, question: str = "SELECT 1") -> None:
    """Connect once: MLflow would try for two minutes before it says why it cannot."""
    from sqlalchemy import create_engine

    limited = {"connect_timeout": _CONNECT_S} if _kind_of(uri) in ("postgresql", "mysql") else {}
    try:
        engine = create_engine(uri, connect_args=limited)
        with engine.connect() as connection:
            connection.exec_driver_sql(question)
        engine.dispose()
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracking uri '{masked(uri)}' needs the package '{error.name}': install it "
            "(`pip install 'netsplit[postgres]'` for postgresql+psycopg://...)."
        ) from error
    except Exception as error:  # whatever the driver raises
        raise _cannot_be_opened(uri, error) from error


def _check_server(uri: str) -> None:
    """Ask once: MLflow, which is to be patient while a model trains, would ask for minutes."""
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    limit = float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT", _CONNECT_S))
    try:
        creds = get_default_host_creds(uri)
        http_request(creds, "/health", "GET", max_retries=0, timeout=limit, raise_on_status=False)
    except Exception as error:  # of the HTTP library, in words of several layers: the first cause is plain
        first: BaseException = error
        while cause := first.__cause__ or first.__context__:
            first = cause
        # What no OSError says is of the address, and may hold a part of its password.
        why = first.strerror or str(first) if isinstance(first, OSError) else "give http(s)://host:port"
        raise ConfigError(
            f"no MLflow server answers at {masked(uri)} ({why}): start it, or set another tracking.uri."
        ) from error
