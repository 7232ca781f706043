"""Runs are recorded through a tracking server of its own process, with files and the machine's load."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from netsplit.tracking import Tracker

pytestmark = pytest.mark.slow

STARTS_IN_S = 120


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, database: str) -> Iterator[str]:
    """The address of a server that keeps runs in a SQLite file and files in a folder of its own."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", database]
    command += ["--artifacts-destination", str(folder / "files")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True
        )
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/health", process, folder / "log")
            yield address
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + STARTS_IN_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(address, timeout=1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"no server after {STARTS_IN_S} s: {log.read_text()}")


def test_a_comparison_is_recorded_through_a_server(server: str, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "plan.txt").write_text("cpu:0")
    tracker = Tracker(server, "served", system_metrics=0.1)
    with (
        tracker.comparison("all", {"batch_size": 4}, {"model": "dot"}) as comparison,
        comparison.method("auto", {"batch_size": 4}) as run,
    ):
        run.metrics([("loss", 1 / (step + 1), step) for step in range(1500)])
        run.artifact(tmp_path / "plans", "plans")
        run.text("hello", "notes/a.txt")
        time.sleep(0.5)
    client = tracker.client
    assert client is not None
    runs = {each.info.run_name: each for each in client.search_runs([tracker.experiment_id])}
    assert set(runs) == {"all", "auto · dot"}
    method = runs["auto · dot"]
    assert method.info.status == "FINISHED"
    assert method.info.artifact_uri.startswith("mlflow-artifacts:/")
    assert method.data.params == {"model": "dot", "partitioner": "auto", "batch_size": "4"}
    assert len(client.get_metric_history(method.info.run_id, "loss")) == 1500
    assert "system/cpu_utilization_percentage" in method.data.metrics
    for path, text in (("plans/plan.txt", "cpu:0"), ("notes/a.txt", "hello")):
        copy = client.download_artifacts(method.info.run_id, path, str(tmp_path))
        assert Path(copy).read_text() == text
