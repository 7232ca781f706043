"""What holds for all tests."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from netsplit.profile.measured import CACHE_VARIABLE
from netsplit.runtime.workers.pool import WorkerPool
from tests.builders import costs_of
from tests.commands import Command, run_command
from tests.cover import SEED, seed_of_run
from tests.examples import ask_for_all
from tests.workers import Pools, cpu_workers, set_costs

settings.register_profile("same in every run", derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are read, which say how many examples they have."""
    if config.getoption("markexpr") != "not slow":
        ask_for_all()
    elif SEED not in os.environ:
        settings.load_profile("same in every run")


def pytest_report_header() -> str:
    return f"drawn with {SEED}={seed_of_run()}"


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: a twentieth of the time went into looking for garbage among them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors are not worth a second thread, which would wait for its turn where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A shell's background jobs are started deaf to Ctrl-C, which tests press and their processes inherit."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kept costs are the tests' own, not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without experiments, to be copied: creating one takes seconds."""
    from netsplit.tracking.database import open_client

    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    open_client(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def database(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One MLflow database for the whole session."""
    path = tmp_path_factory.mktemp("mlflow") / "outputs" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(empty_database, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """Number of workers -> their pool, started when first asked for; a failed one is replaced."""
    with ExitStack() as stack:
        started: dict[int, WorkerPool] = {}

        def pool(workers: int) -> WorkerPool:
            if workers not in started or started[workers].failed:
                own = WorkerPool(cpu_workers(workers), Path(tempfile.mkdtemp()))
                started[workers] = stack.enter_context(own)
            return started[workers]

        yield pool


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions take every operator to cost the same, since measuring takes longer than most tests."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3, 1e-3))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return partial(run_command, monkeypatch=monkeypatch, capfd=capfd)
