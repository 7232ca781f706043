"""A cable that is pulled in the middle of an iteration: who waited for whom is said, and training goes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.two_hosts.agents import PORT, Agents, carried_out
from benchmarks.two_hosts.hosts import TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

TIMEOUT_S = 5
UNPLUGGED_S = 12.0
EPOCHS = 4
SMALL = [
    "experiment=quick", "model=vgg19_small", "model.width=4", "model.hidden=16", "model.dropout=0",
    "batch_size=32", "dataset.limit=960", "partitioner=balanced", "schedule=gpipe", "profile=predicted",
    "check=false", "metrics=none", "cluster=cpu2", "+cluster.latency_s=1e-4", "+cluster.bandwidth=1e7",
    f"epochs={EPOCHS}", "tracking=none",
]  # fmt: skip
NAMED = re.compile(
    r"worker cpu:1 \(rank 1, process \d+ on b\) does not answer .*; device cpu:0 waited 5 s at the "
    r"(forward|backward) of segment 0, micro-batch \d+ for .* of micro-batch \d+ from cpu:1"
)
"""cpu:1 with its instruction, too, where a sign of life had told of it before the pull."""


class Cabled:
    """What the controller says, and a cable that is pulled within an epoch."""

    def __init__(self, hosts: TwoHosts) -> None:
        self.hosts = hosts
        self.said: list[tuple[float, str]] = []
        self.pulled_s = 0.0

    def seen(self, line: str) -> None:
        self.said.append((time.monotonic(), line))
        if "epoch 2," in line and not self.pulled_s:
            self.pulled_s = time.monotonic() + 1.0
            threading.Timer(1.0, self.hosts.pull).start()
            threading.Timer(1.0 + UNPLUGGED_S, self.hosts.plug).start()

    def when(self, words: str) -> tuple[float, str]:
        """Seconds after the pull, and the first such line."""
        return next((t - self.pulled_s, line) for t, line in self.said if words in line)


def losses(said: str) -> dict[str, str]:
    """The last loss of every epoch."""
    return dict(re.findall(r"epoch (\d+), loss ([\d.]+)", said))


def command(folder: Path, *words: str) -> list[str]:
    where = [f"checkpoint.folder={folder / 'checkpoints'}", f"hydra.run.dir={folder}"]
    return [sys.executable, "-m", "runners.train", *SMALL, "resume=auto", *where, *words]


def test_a_pulled_cable_is_named_and_training_goes_on_when_it_is_plugged_in(
    hosts: TwoHosts, tmp_path: Path
) -> None:
    """Named within twice the timeout and some moments: the workers' wait, the silence, the peers' grace."""
    agents, cabled = Agents(hosts, (1, 1), tmp_path), Cabled(hosts)
    where = [f"cluster.host={hosts.a.address}", f"cluster.port={PORT}", "cluster.external=true"]
    asked = command(tmp_path / "two", f"cluster.timeout_s={TIMEOUT_S}", *where)
    assert carried_out(agents, asked, tmp_path, cabled.seen) == 0, agents.said()
    after_s, line = cabled.when("restarting the workers (1 of 3)")
    assert NAMED.search(line), line
    assert 0 < after_s < 2 * TIMEOUT_S + 5
    assert cabled.when("Resuming from")[0] > UNPLUGGED_S
    assert len(agents.started) == 4
    assert agents.ended()[2:] == [0, 0]
    assert hosts.a.processes() == hosts.b.processes() == []
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    one = subprocess.run(
        command(tmp_path / "one"), env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    undisturbed = losses(one.stdout + one.stderr)
    assert len(undisturbed) == EPOCHS
    assert losses("".join(line for _, line in cabled.said)) == undisturbed
