"""Opening MLflow's database: made once, whole or not at all; refused in one sentence where unusable."""

from __future__ import annotations

import logging
import os
import re
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import check_writable
from netsplit.tracking.metrics import COMPARISON
from netsplit.tracking.values import masked, words_of_failure

if TYPE_CHECKING:
    from mlflow import MlflowClient

__all__ = [
    "artifact_root",
    "charts_of",
    "check_address",
    "newest_charts",
    "open_client",
    "open_experiment",
    "server_of",
    "sqlite_path",
]

logger = logging.getLogger(__name__)

_SQLITE = "sqlite:///"
_SERVERS = ("http://", "https://")
_DATABASES = ("postgresql", "mysql", "mssql")
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
# Without this tag the UI takes training runs for conversations with a language model.
_TRAINING = {"mlflow.experimentKind": "custom_model_development"}
_CONNECT_S = 5.0  # a server that does not answer in this time is reported at once
# MLflow's own, which a training wants, are 120 s and 7: too long to wait for a first answer.
_FIRST_QUESTION = {"MLFLOW_HTTP_REQUEST_TIMEOUT": f"{_CONNECT_S:.0f}", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}


def require_database(uri: str) -> None:
    """Raises ConfigError: `uri` names a database file that is not there."""
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise ConfigError(
            f"there is no database {path}: `netsplit compare` (`make run`) records one, or set tracking.uri."
        )


def sqlite_path(uri: str) -> Path | None:
    """The absolute path of a SQLite database, or None where `uri` is another kind of address.

    Raises:
        ConfigError: an address that MLflow cannot keep runs at.
    """
    if uri.startswith(_SQLITE):
        name = uri.removeprefix(_SQLITE)
        if not name or re.search(r"^(file:|:memory:)|\?|%[0-9A-Fa-f]{2}", name):
            raise ConfigError(
                f"tracking uri '{uri}' names no file: give {_SQLITE} and a path, without options and escapes "
                f"as %20, such as {_SQLITE}outputs/mlflow.db."
            )
        return Path(name).absolute()
    if not uri.startswith(_SERVERS) and _database(uri) not in _DATABASES:
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
    if path is not None:
        if not path.exists():
            _create(path)
        uri = f"{_SQLITE}{path}"
    return _connect(uri)


def check_address(uri: str) -> None:
    """Makes nothing.

    Raises:
        ConfigError: runs cannot be kept at `uri`; says why.
    """
    path = sqlite_path(uri)
    if path is not None:
        _check_file(path)
    elif uri.startswith(_SERVERS):
        _check_server(uri)
    else:
        _check_database(uri)


def artifact_root(uri: str, given: str | None) -> str | None:
    """Where files of runs go: `given`, else beside a SQLite file; None: where the server keeps them.

    Raises:
        ConfigError: `uri` is not one MLflow can use.
    """
    if given is not None:
        return given if "://" in given else Path(given).absolute().as_uri()
    path = sqlite_path(uri)
    if path is not None:
        return (path.parent / "mlartifacts").as_uri()
    return None if uri.startswith(_SERVERS) else (Path("outputs") / "mlartifacts").absolute().as_uri()


def open_experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """The id of an experiment, made where missing with its files under `artifacts`/<name>.

    Raises:
        ConfigError: the experiment was deleted in the UI.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        folder = None
        if artifacts is not None:
            bare = re.sub(r"[^\w\-.]+", "_", name)
            folder = f"{artifacts.rstrip('/')}/{quote(bare)}"
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


def _database(uri: str) -> str:
    return uri.partition("://")[0].partition("+")[0]


def _connect(uri: str, called: str | None = None) -> MlflowClient:
    """A client for `uri`, which errors call by another name where it is not the user's."""
    for key, value in _QUIET.items():
        os.environ.setdefault(key, value)
    for noisy in ("alembic", "mlflow", "git"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # tracebacks of what it raises too
    for handler in logging.getLogger("mlflow").handlers:  # its warnings name the address of every request
        handler.addFilter(_without_passwords)
    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        with _impatient():
            client.search_experiments(max_results=1)
    except Exception as error:  # MLflow passes on whatever its database driver or HTTP library raises
        raise _cannot_be_opened(called or uri, error) from error
    return client


def _without_passwords(record: logging.LogRecord) -> bool:
    record.msg, record.args = masked(record.getMessage()), ()
    return True


@contextmanager
def _impatient() -> Iterator[None]:
    """A short timeout and few silent retries for MLflow's requests, where the user has not set their own."""
    added = {key: value for key, value in _FIRST_QUESTION.items() if key not in os.environ}
    retries = logging.getLogger("urllib3.connectionpool")
    level = retries.level
    os.environ.update(added)
    retries.setLevel(logging.ERROR)
    try:
        yield
    finally:
        retries.setLevel(level)
        for key in added:
            del os.environ[key]


def _cannot_be_opened(uri: str, error: Exception) -> ConfigError:
    reason = words_of_failure(error)
    if "Read timed out" in reason:
        reason = "it takes connections and does not answer; set MLFLOW_HTTP_REQUEST_TIMEOUT to wait longer."
    return ConfigError(f"tracking uri '{masked(uri)}' cannot be opened: {reason}")


def _create(path: Path) -> None:
    """Make the database beside its place and then link it there, so that it is whole when it appears."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(path, error.strerror) from error
    logger.info("Creating the MLflow database %s (once; takes up to a quarter of a minute).", path)
    address = f"{_SQLITE}{path}"
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            scratch = Path(folder) / "new.db"
            _connect(f"{_SQLITE}{scratch}", address)
            try:
                os.link(
                    scratch, path
                )  # unlike a rename, leaves alone what another process put there meanwhile
            except FileExistsError:
                return
            except OSError:  # a file system without hard links
                scratch.replace(path)
    except OSError as error:
        raise _cannot_be_opened(address, error) from error


def _no_folder(path: Path, why: str | None) -> ConfigError:
    return ConfigError(f"folder {path.parent} for the MLflow database cannot be made: {why}.")


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise ConfigError(f"tracking uri names the folder {path}: name a file in it, as mlflow.db.")
        check_writable(path)
        if path.exists() and not os.access(path, os.W_OK):
            raise ConfigError(
                f"{path} cannot be written: change its permissions, or set another tracking.uri."
            )
        if path.exists():
            with closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as connection:
                connection.execute("PRAGMA schema_version").fetchone()
    except ConfigError:
        raise
    except (OSError, NetSplitError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise _no_folder(path, why) from error
    except sqlite3.Error as error:
        raise ConfigError(
            f"{path} is not an MLflow database, or is in use ({error}): wait, or set another tracking.uri."
        ) from error


def _check_database(uri: str) -> None:
    """Connect once: MLflow would try for two minutes before it says why it cannot."""
    from sqlalchemy import create_engine

    known = _database(uri) in ("postgresql", "mysql")
    try:
        engine = create_engine(uri, connect_args={"connect_timeout": int(_CONNECT_S)} if known else {})
        engine.connect().close()
        engine.dispose()
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"tracking uri '{masked(uri)}' needs the package '{error.name}': install it "
            "(`pip install 'netsplit[postgres]'` for postgresql+psycopg://...)."
        ) from error
    except Exception as error:  # whatever the driver raises
        raise _cannot_be_opened(uri, error) from error


def _check_server(uri: str) -> None:
    try:
        parts = urlsplit(uri)
        if not parts.hostname:
            raise ValueError
        port = parts.port or (443 if uri.startswith("https") else 80)
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_S).close()
    except ValueError:  # its words can hold a part of the password
        raise ConfigError(
            f"tracking uri '{masked(uri)}' is not the address of a server: give http(s)://host:port, "
            "with a port up to 65535."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"no MLflow server answers at {masked(uri)} ({error.strerror or error}): "
            "start it, or set another tracking.uri."
        ) from error


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
    parts = urlsplit(uri)
    if not parts.scheme.startswith("http"):
        return ""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/") + "/"


def newest_charts(uri: str) -> str | None:
    """The charts of the newest comparison that is recorded at `uri`; None where there is none.

    Raises:
        ConfigError: `uri` cannot be opened.
    """
    client = open_client(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    condition = f"tags.role = 'method' and tags.{COMPARISON} LIKE '%'"
    newest = ["attributes.start_time DESC"]
    for run in client.search_runs(experiments, condition, max_results=1, order_by=newest):
        return charts_of(run.info.experiment_id, run.data.tags[COMPARISON])
    return None
