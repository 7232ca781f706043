"""An unusable tracking uri is refused in one sentence; a database appears whole or not at all."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from netsplit.errors import ConfigError
from netsplit.tracking import Tracker, database
from netsplit.tracking.database import artifact_root, open_client, open_experiment, sqlite_path


@pytest.mark.parametrize(
    "uri", ["outputs/mlruns", "file:///tmp/mlruns", "sqlite://", "sqlite:///", "ftp://host/x"]
)
def test_unknown_kinds_of_uri_are_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="tracking uri"):
        Tracker(uri, "any")


@pytest.mark.parametrize("uri", ["file:x.db?mode=ro&uri=true", "file:x.db", "x.db?timeout=9"])
def test_options_of_sqlite_are_refused_with_the_plain_address(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"which is not taken: give sqlite:///x\.db\."):
        Tracker(f"sqlite:///{uri}", "any").open()
    assert not list(tmp_path.iterdir())


def test_a_relative_path_is_fixed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Tracker("sqlite:///outputs/mlflow.db", "any").uri == f"sqlite:///{tmp_path}/outputs/mlflow.db"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names the folder .*mlflow\.db"):
        open_client(f"sqlite:///{tmp_path}")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database, and long enough to be read as one " * 20)
    with pytest.raises(ConfigError, match="is not an MLflow database"):
        open_client(f"sqlite:///{tmp_path}/notes.db")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        open_client(f"sqlite:///{tmp_path}/file/mlflow.db")


def test_a_silent_server_is_reported() -> None:
    with pytest.raises(ConfigError, match="no MLflow server answers at http"):
        open_client("http://127.0.0.1:9")


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:secret@127.0.0.1:99999",
        "http://127.0.0.1:notaport",
        "http://me:secret/x@127.0.0.1:5000",
        "http://me:secret@[::1",
        "https://",
        "http://127.0.0.1:0",
        "http://a..b:5000",
    ],
)
def test_an_address_of_no_server_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a server: give") as refused:
        Tracker(uri, "any").open()
    assert "secret" not in str(refused.value)


def test_a_database_with_brackets_in_its_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_client("postgresql+absent://me@[::1/base")


@pytest.fixture
def mute() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://me:secret@127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_takes_connections_and_never_answers_is_reported(
    mute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    monkeypatch.setattr(database, "_FIRST_QUESTION", quick)
    with pytest.raises(ConfigError, match="takes connections and does not answer") as refused:
        open_client(mute)
    assert "secret" not in str(refused.value)
    assert not quick.keys() & os.environ.keys()


def test_the_first_question_is_short_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert int(database._FIRST_QUESTION["MLFLOW_HTTP_REQUEST_TIMEOUT"]) <= 10
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    with database._impatient():
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "2"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ


class Answers(BaseHTTPRequestHandler):
    """Just enough of a tracking server to open it and to end a run."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"run": {"info": {"run_id": "1", "experiment_id": "1", "status": "FINISHED"}}}')

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def answering() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://me:secret@127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_mlflow_prints_and_warns_of_tells_no_password(
    answering: str, capfd: pytest.CaptureFixture[str]
) -> None:
    client = open_client(answering)
    client.set_terminated("1", "FINISHED")
    logging.getLogger("mlflow").warning("no answer from %s", answering)
    printed = "".join(capfd.readouterr())
    assert "secret" not in printed
    assert "no answer from http://me:***@127.0.0.1" in printed


def test_creation_is_announced_and_leaves_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        database, "_connect", lambda uri, called="": Path(uri.removeprefix("sqlite:///")).touch()
    )
    with caplog.at_level(logging.INFO):
        open_client(f"sqlite:///{tmp_path}/a/m.db")
    assert "Creating the MLflow database" in caplog.text
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["m.db"]


def test_interrupted_creation_leaves_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(uri: str, called: str) -> None:
        Path(uri.removeprefix("sqlite:///")).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(database, "_connect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_client(f"sqlite:///{tmp_path}/m.db")
    assert not list(tmp_path.iterdir())


def test_a_disk_too_full_for_a_new_database_is_told_with_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made beside its place, under a name that the user never gave."""

    def full(**_: object) -> None:
        raise RuntimeError("(sqlite3.OperationalError) database or disk is full\n[SQL: CREATE TABLE]")

    monkeypatch.setattr("mlflow.MlflowClient", full)
    with pytest.raises(ConfigError) as e:
        open_client(f"sqlite:///{tmp_path}/m.db")
    assert f"'sqlite:///{tmp_path}/m.db' cannot be opened: the disk is full: make room" in str(e.value)
    assert not list(tmp_path.iterdir())


def test_a_deleted_experiment_is_refused_with_the_cure(database: str) -> None:
    client = open_client(database)
    client.delete_experiment(open_experiment(client, "gone", None))
    with pytest.raises(ConfigError, match="mlflow experiments restore"):
        open_experiment(client, "gone", None)


def test_servers_have_no_path() -> None:
    assert sqlite_path("https://mlflow.example.org") is None
    assert sqlite_path("postgresql+psycopg2://user@host/base") is None


def test_files_lie_beside_the_database_or_where_they_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert artifact_root("sqlite:///a/m.db", None) == f"file://{tmp_path}/a/mlartifacts"
    assert artifact_root("https://mlflow.example.org", None) is None
    assert artifact_root("postgresql://host/base", None) == f"file://{tmp_path}/outputs/mlartifacts"
    assert artifact_root("postgresql://host/base", "files") == f"file://{tmp_path}/files"
    assert artifact_root("sqlite:///a/m.db", "s3://bucket/runs") == "s3://bucket/runs"


def test_a_refusal_tells_no_password() -> None:
    with pytest.raises(ConfigError) as refused:
        open_client("http://me:secret@127.0.0.1:9")
    assert "secret" not in str(refused.value)
    assert "me:***@127.0.0.1:9" in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:9/base", "cannot be opened: "),
        ("postgresql+absent://me:secret@127.0.0.1:9/base", "cannot be opened: "),
        ("mysql+pymysql://me:secret@127.0.0.1:9/base", "needs the package 'pymysql': install it"),
    ],
)
def test_a_database_that_is_not_there_is_reported_at_once(uri: str, words: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError) as refused:
        open_client(uri)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_folder_whose_name_reads_as_an_escape_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="has '%20', which stands for another character"):
        sqlite_path("sqlite:////data/a %20b/mlflow.db")
    assert sqlite_path("sqlite:////data/100 % ü/mlflow.db") == Path("/data/100 % ü/mlflow.db")
