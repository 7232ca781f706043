"""An unusable tracking uri is refused in one sentence; a database appears whole or not at all."""

from __future__ import annotations

import logging
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


def test_creation_is_announced_and_leaves_no_scratch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(database, "_connect", lambda uri: Path(uri.removeprefix("sqlite:///")).touch())
    with caplog.at_level(logging.INFO):
        open_client(f"sqlite:///{tmp_path}/a/m.db")
    assert "Creating the MLflow database" in caplog.text
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["m.db"]


def test_interrupted_creation_leaves_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(uri: str) -> None:
        Path(uri.removeprefix("sqlite:///")).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(database, "_connect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_client(f"sqlite:///{tmp_path}/m.db")
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
