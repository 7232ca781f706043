"""One MLflow database for the whole session: creating it takes seconds."""

from __future__ import annotations

import pytest

from netsplit.tracking.database import open_client


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'outputs' / 'mlflow.db'}"
    open_client(uri)
    return uri
