"""From the address that `netsplit ui` prints to charts of the methods side by side, in a real browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from netsplit.tracking import ComparisonRow, Tracker
from netsplit.tracking.database import newest_charts
from netsplit.tracking.records import figures_of
from tests.browser import needs_browser, watch
from tests.tracking.test_server import STARTS_IN_S, free_port

BATCH = 64
SECONDS = {"auto": 0.2, "netsplit": 0.25, "m_topo": 0.32, "single": 0.4}
LABELS = {"model": "amoebanet_d", "dataset": "digits", "cluster": "cpu2", "schedule": "gpipe"}

# The title of each chart and the lines of its card, once there are four and the first is drawn.
CHARTS = """(() => {
  const titles = [...document.querySelectorAll("h4[title]")];
  if (titles.length < 4 || !document.querySelector(".bartext")) return null;
  return titles.map(title => {
    let card = title;
    while (card.parentElement.querySelectorAll("h4[title]").length < 2) card = card.parentElement;
    return [title.title, card.innerText.split("\\n")];
  });
})()"""

pytestmark = [pytest.mark.slow, needs_browser]


def record(tracker: Tracker, faster: float) -> str:
    """A comparison of all methods, each with ten iterations and two epochs; its charts."""
    with tracker.comparison("digits", {"seed": 1}, LABELS) as comparison:
        for method, seconds in SECONDS.items():
            with comparison.method(method) as run:
                for step in range(10):
                    run.metrics([("train/loss", 2.3 * 0.9**step, step), ("train/iteration_s", seconds, step)])
                for epoch, score in enumerate((0.5, 0.75)):
                    run.metrics([("train/epoch_loss", 1.0, epoch), ("test/accuracy", score, epoch)])
                rate = faster * BATCH / seconds
                row = ComparisonRow(
                    method, "", predicted_s=seconds, measured_s=seconds / faster, throughput=rate,
                    measured_peak={"cpu:0": 40},
                )  # fmt: skip
                run.summary(figures_of(row))
    return comparison.charts


def served(database: str, folder: Path) -> Iterator[str]:
    """The address that `netsplit ui` prints last."""
    said = folder / "said"
    words = [sys.executable, "-m", "netsplit", "ui", "--port", str(free_port()), "--database", database]
    with said.open("w") as out:
        server = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + STARTS_IN_S
    while "Charts" not in said.read_text() and time.monotonic() < deadline and server.poll() is None:
        time.sleep(0.2)
    yield said.read_text().split()[-1]
    os.kill(server.pid, signal.SIGTERM)
    server.wait(60)


@pytest.fixture
def address(database: str, tmp_path: Path) -> Iterator[str]:
    tracker = Tracker(database, "charts")
    older, newest = record(tracker, 2.0), record(tracker, 1.0)
    assert older != newest == newest_charts(database)
    yield from served(database, tmp_path)


def test_the_printed_address_shows_the_throughput_of_every_method(address: str, tmp_path: Path) -> None:
    """Speed is the first section and accuracy the next, on the first screen and without a click."""
    charts = watch(tmp_path, address, CHARTS, seconds=60)
    assert charts, f"no charts; {tmp_path / 'page.png'} is what there was"
    titles = [title for title, _ in charts]
    assert titles[0] == "speed/samples_per_s"
    assert "test/accuracy" in titles
    lines = charts[0][1]
    assert [line.split(" · ")[0] for line in lines if " · " in line] == list(SECONDS)
    values = [f"{BATCH / seconds:.2f}" for seconds in SECONDS.values()]
    assert [line for line in lines if line in values] == values  # of this comparison, not the one before
