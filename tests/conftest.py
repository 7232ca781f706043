"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from netsplit.profile.measured import CACHE_VARIABLE
from tests.commands import Command, run_command


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kept costs are the tests' own, not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One MLflow database for the whole session: creating it takes seconds."""
    from netsplit.tracking.database import open_client

    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'outputs' / 'mlflow.db'}"
    open_client(uri)
    return uri


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return partial(run_command, monkeypatch=monkeypatch, capfd=capfd)
