"""MLflow's server for the recorded runs, ended with this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from itertools import chain
from types import FrameType

from netsplit.tracking.database import newest_charts, require_database

__all__ = ["ui"]


def ui(port: int, host: str, database: str) -> None:
    """Serve until a signal ends it. Prints addresses once the server answers.

    Raises:
        ConfigError: nothing was recorded there.
    """
    require_database(database)
    charts = newest_charts(database)
    keys = {
        "--backend-store-uri": database, "--registry-store-uri": database, "--host": host,
        "--port": str(port), "--workers": "1", "--uvicorn-opts": "--log-level warning",
    }  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "ui", *chain(*keys.items())],
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONWARNINGS": "ignore"},
        start_new_session=True,  # so that all its processes can be ended at once
    )

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)
    while server.poll() is None and not _answers(host, port):
        time.sleep(0.2)
    if server.poll() is None:
        address = f"http://{host}:{port}/"
        print(f"Runs: {address}#/experiments?workflowType=machine_learning")
        if charts is not None:
            print(f"Charts of the newest comparison: {address}{charts}")
        sys.stdout.flush()
    code = server.wait()
    end(0, None)
    sys.exit(0 if code in (0, -signal.SIGTERM) else code)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True
