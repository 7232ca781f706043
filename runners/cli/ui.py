"""MLflow's server for the recorded runs, ended with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from netsplit.errors import ConfigError

__all__ = ["ui"]

FILE = "sqlite:///"


def ui(port: int, host: str, database: str) -> None:
    """Serve until a signal ends it; its processes end with it.

    Raises:
        ConfigError: nothing was recorded there.
    """
    from netsplit.tracking.charts import newest_charts

    if database.startswith(FILE) and not Path(database.removeprefix(FILE)).is_file():
        raise ConfigError(
            f"{database.removeprefix(FILE)} is not there: compare something first, or give --database."
        )
    charts, address = newest_charts(database), f"http://{host}:{port}/"
    sys.stdout.write(f"Runs: {address}#/experiments?workflowType=machine_learning\n")
    if charts is not None:
        sys.stdout.write(f"Charts of the newest comparison: {address}{charts}\n")
    sys.stdout.flush()
    where = ["--backend-store-uri", database, "--host", host, "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "ui", *where, "--workers", "1"],
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        start_new_session=True,  # so that all its processes can be ended at once
    )

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, end)
    code = server.wait()
    end(0, None)
    sys.exit(0 if code in (0, -signal.SIGTERM) else code)
