"""An unusable tracking uri is refused in one sentence; a database appears whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsplit.errors import ConfigError
from netsplit.tracking import Tracker, database
from netsplit.tracking.database import open_client


@pytest.mark.parametrize("uri", ["http://me:sec/ret@127.0.0.1", "http://me:secret@[::1"])
def test_an_address_of_no_server_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="cannot be opened: ") as refused:
        Tracker(uri, "any").open()
    assert "sec" not in str(refused.value)


def test_interrupted_creation_leaves_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(uri: str) -> None:
        Path(uri.removeprefix("sqlite:///")).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(database, "_connect", interrupt)
    with pytest.raises(KeyboardInterrupt):
        open_client(f"sqlite:///{tmp_path}/m.db")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("postgresql+psycopg://me:secret@127.0.0.1:9/base", "cannot be opened: "),
        ("mysql+pymysql://me:secret@127.0.0.1:9/base", "No module named 'pymysql'"),
    ],
)
def test_a_database_that_is_not_there_is_reported_at_once(uri: str, words: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(ConfigError) as refused:
        open_client(uri)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)
