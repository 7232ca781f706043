"""Runs that a killed process left open are ended by the next tracker; those of living processes are not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from netsplit.tracking import Tracker
from netsplit.tracking.owner import is_gone, owner_mark

KILLED = """
import os, signal, sys
from netsplit.tracking import Tracker
with Tracker(sys.argv[1], "owners").comparison("left") as comparison, comparison.method("netsplit"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def statuses(tracker: Tracker) -> dict[str, tuple[str, str]]:
    assert tracker.client is not None
    runs = tracker.client.search_runs([tracker.experiment_id])
    return {run.info.run_name: (run.info.status, run.data.tags.get("error", "")) for run in runs}


def test_runs_of_a_killed_process_are_marked_failed_by_the_next_tracker(database: str) -> None:
    root = Path(__file__).resolve().parents[2]
    living = Tracker(database, "owners")
    with living.comparison("alive"):
        killed = subprocess.run([sys.executable, "-c", KILLED, database], cwd=root, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert statuses(living)["left"] == ("RUNNING", "")
        Tracker(database, "another experiment").open()
        ends = statuses(living)
        assert ends["left"] == ends["netsplit"] == ("FAILED", "its process was killed")
        assert ends["alive"] == ("RUNNING", "")
    assert statuses(living)["alive"] == ("FINISHED", "")


def test_a_mark_tells_a_process_from_another_of_the_same_number() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        mark = owner_mark(process.pid)
        assert not is_gone(mark)
        place, began = mark.rsplit(" ", 1)
        assert is_gone(f"{place} {float(began) + 5:.2f}")
    assert is_gone(mark)
