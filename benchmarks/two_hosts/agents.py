"""What the user does on two hosts: the controller's command on one, and the printed torchrun on both."""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.two_hosts.hosts import INTERFACE, Host, TwoHosts
from netsplit.runtime.workers.launch import KEY_VARIABLE

__all__ = ["PORT", "Agents", "carried_out"]

PORT = 29500
_ROOT = Path(__file__).resolve().parents[2]
_PRINTED = re.compile(r"'torchrun (.*?)' with")
_SOON_S = 20.0


class Agents:
    """torchrun agents, one on each host, started whenever a controller asks for them.

    Args:
        devices: of `a`, of `b`, and so on.
        folder: for what they print.
    """

    def __init__(self, hosts: TwoHosts, devices: tuple[int, ...], folder: Path) -> None:
        self.hosts = hosts
        self.devices = devices
        self.folder = folder
        self.key = secrets.token_hex(16)
        self.started: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the agents and of their controller."""
        own = {KEY_VARIABLE: self.key, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_ROOT)}
        return own | {"GLOO_SOCKET_IFNAME": INTERFACE, "PYTHONUNBUFFERED": "1"}

    def start(self, told: str) -> None:
        """The command that the controller printed, on every host; nothing where `told` has none."""
        if (printed := _PRINTED.search(told)) is None:
            return
        for host, count in zip(self.hosts.all, self.devices, strict=True):
            words = (
                printed[1]
                .replace("nnodes=...", f"nnodes={len(self.devices)}")
                .replace("node=...", f"node={count}")
            )
            self._start(host, [sys.executable, "-m", "torch.distributed.run", *shlex.split(words)])

    def said(self) -> str:
        """By all of them until now."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("agent*.log")))

    def ended(self) -> list[int]:
        """Their exit codes, once they have ended; they are given a moment to do so."""
        return [agent.wait(_SOON_S) for agent in self.started]

    def _start(self, host: Host, command: Sequence[str]) -> None:
        with (self.folder / f"agent{len(self.started)}-{host.name}.log").open("w") as output:
            self.started.append(host.start(command, self.environment, output, _ROOT))


def carried_out(
    agents: Agents, command: Sequence[str], folder: Path, seen: Callable[[str], None] = lambda line: None
) -> int:
    """Run a controller's command on `a`, and agents whenever it asks for them; its exit code.

    Args:
        seen: told every line that the command prints.
    """
    controller = agents.hosts.a.start(command, agents.environment, subprocess.PIPE, folder)
    assert controller.stdout is not None
    for line in controller.stdout:
        seen(line)
        agents.start(line)
    code = controller.wait()
    with suppress(subprocess.TimeoutExpired):
        agents.ended()
    return code
