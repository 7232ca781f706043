"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from netsplit.profile.measured import CACHE_VARIABLE


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors are not worth a second thread, which would wait for its turn where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
