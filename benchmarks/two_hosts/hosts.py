"""Two hosts on one machine: network namespaces joined by a pair of virtual Ethernet ends, shaped to a rate.

    host a                                        host b
    10.77.0.1  eth0 ── tbf, rate ════ tbf, rate ── eth0  10.77.0.2
    keeper (process 1 of a)                       keeper (process 1 of b)

Each host has a network, a name, a table of names and process numbers of its own (Linux namespaces); files,
processors and memory are the machine's. The namespaces have no names that could be left behind: they live as
long as their keeper, which ends when the pipe from this process does, and the kernel ends all that they run.
Every frame of a link counts with its 14 bytes of Ethernet's header: of 1514 bytes TCP carries 1448.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, Self

import psutil

from netsplit.errors import NetSplitError

__all__ = ["CARRIED", "INTERFACE", "Host", "TwoHosts", "missing"]

INTERFACE = "eth0"
CARRIED = 1448 / 1514
"""The fraction of a link's bytes that TCP carries in full frames."""

_ADDRESSES = {name: f"10.77.0.{n}" for n, name in enumerate("ab", 1)}
_TABLE = "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **_ADDRESSES}.items())
_BURST_BYTES = (
    3_100  # that may pass at once after a pause: two full frames; of one, timers make the rate 7 % less
)
_QUEUE_S = 0.2  # of sent bytes that an end keeps before it drops some
_CALLERS = ("net", "uts")  # that a thread may enter alone
_KEEPER = """
set -e
hostname {name}
mount -t tmpfs none /mnt
printf '%s' '{table}' > /mnt/hosts
mount --bind /mnt/hosts /etc/hosts
umount --lazy /mnt
ip link set lo up
echo
exec cat
"""


@dataclass(frozen=True)
class Host:
    """One of them: its name in its own table of names, and its address on the link."""

    name: str
    address: str
    keeper: psutil.Process

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        output: IO[str] | int | None = None,
        folder: str | Path = ".",
    ) -> subprocess.Popen[str]:
        """Begin a command there; what it prints, errors too, goes to `output`."""
        entering = ["nsenter", f"--target={self.keeper.pid}", "--net", "--uts", "--mount", "--pid"]
        return subprocess.Popen(
            [*entering, "env", f"--chdir={Path(folder).resolve()}", *command],
            env=None if environment is None else {**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and those it begins, open their sockets on this host and are told its name."""
        with ExitStack() as opened:
            own = [opened.enter_context(open(f"/proc/thread-self/ns/{space}")) for space in _CALLERS]
            there = [opened.enter_context(open(f"/proc/{self.keeper.pid}/ns/{space}")) for space in _CALLERS]
            try:
                _enter(there)
                yield
            finally:
                _enter(own)

    def processes(self) -> list[psutil.Process]:
        """What runs there beside the keeper."""
        own = os.readlink(f"/proc/{self.keeper.pid}/ns/pid")
        return [each for each in psutil.process_iter() if each != self.keeper and _space(each.pid) == own]


class TwoHosts:
    """Hosts `a` and `b` with a link between them; a context, at whose end nothing of them is left.

    Args:
        rate_mbit: of the link in each direction, in 10^6 bits per second, frames' headers included.

    Raises:
        NetSplitError: this machine does not let the process have them; says what is missing.
    """

    names: ClassVar = ("a", "b")

    def __init__(self, rate_mbit: float) -> None:
        self.rate_mbit = rate_mbit
        self._opened = ExitStack()
        try:
            self.all = [self._host(name) for name in self.names]
            self.a, self.b = self.all[:2]
            self._join()
            self.shape(rate_mbit)
        except BaseException:
            self.close()
            raise

    @property
    def bytes_per_s(self) -> float:
        """That TCP can bring over the link in one direction, in full frames."""
        return self.rate_mbit * 1e6 / 8 * CARRIED

    def shape(self, rate_mbit: float) -> None:
        """Another rate, in both directions."""
        self.rate_mbit = rate_mbit
        shaped = [
            "rate",
            f"{rate_mbit:g}mbit",
            "burst",
            str(_BURST_BYTES),
            "latency",
            f"{1e3 * _QUEUE_S:g}ms",
        ]
        for host, end in self._ends():
            _called([*_within(host), "tc", "qdisc", "replace", "dev", end, "root", "tbf", *shaped])

    def pull(self) -> None:
        """The cable: from now on neither host reaches the other, and nobody tells them."""
        _called([*_within(self.b), "ip", "link", "set", INTERFACE, "down"])

    def plug(self) -> None:
        """It is plugged in again."""
        _called([*_within(self.b), "ip", "link", "set", INTERFACE, "up"])

    def close(self) -> None:
        """End all that runs on them, and them."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _host(self, name: str) -> Host:
        """A keeper with namespaces of its own: it waits for the end of its input."""
        script = _KEEPER.format(name=name, table=_TABLE)
        own = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        outer = subprocess.Popen(
            ["unshare", *own, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._opened.callback(_ended, outer)
        assert outer.stdout is not None
        assert outer.stderr is not None
        if outer.stdout.readline() != "\n":
            raise NetSplitError(f"cannot create a network namespace here: {outer.stderr.readline().strip()}.")
        (keeper,) = psutil.Process(outer.pid).children()
        return Host(name, _ADDRESSES.get(name, ""), keeper)

    def _join(self) -> None:
        self._cable(self.a, self.b, INTERFACE)
        self._go_up()

    def _ends(self) -> list[tuple[Host, str]]:
        """The ends of the links that are shaped: on which host, and its name there."""
        return [(host, INTERFACE) for host in self.all]

    def _cable(self, host: Host, other: Host, there: str) -> None:
        """From the interface of a host to one of that name on another."""
        end = ["name", INTERFACE, "netns", str(host.keeper.pid)]
        pair = ["type", "veth", "peer", "name", there, "netns", str(other.keeper.pid)]
        _called(["ip", "link", "add", *end, *pair])

    def _go_up(self) -> None:
        for host in self.all:
            _called([*_within(host), "ip", "address", "add", f"{host.address}/24", "dev", INTERFACE])
            _called([*_within(host), "ip", "link", "set", INTERFACE, "up"])


def missing() -> str:
    """What this machine lacks for two hosts, in words; nothing where it has all."""
    if sys.platform != "linux":
        return f"network namespaces are Linux's, and this is {sys.platform}"
    if os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in ("unshare", "nsenter", "ip", "tc") if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} (from util-linux and iproute2) not found"
    try:
        TwoHosts(100).close()
    except (NetSplitError, OSError) as error:
        return str(error).rstrip(".")
    return ""


def _within(host: Host) -> list[str]:
    return ["nsenter", f"--target={host.keeper.pid}", "--net"]


def _space(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _called(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetSplitError(f"'{' '.join(command)}' failed: {done.stderr.strip()}.")


def _enter(spaces: list[IO[str]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for space in spaces:
        if libc.setns(space.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def _ended(outer: subprocess.Popen[str]) -> None:
    """The keeper and, by the kernel, all processes of its host; then its namespaces are gone too."""
    with outer, suppress(psutil.NoSuchProcess):
        for keeper in psutil.Process(outer.pid).children():
            keeper.kill()  # which ends `outer`
