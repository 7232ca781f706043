"""How workers and their controller find one another, and what must agree before anything is loaded.

    worker ── authenticated connection ──► controller
           ── Hello: who, where, versions ──►   refuses in one sentence, or sends the set-up

A Hello is JSON rather than a pickle: it must be readable where versions differ.
"""

from __future__ import annotations

import hashlib
import json
import platform
import socket
import struct
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from ipaddress import ip_address
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import netsplit
from netsplit.cluster.local import ClusterSpec
from netsplit.errors import WorkerError

__all__ = [
    "KEY_VARIABLE",
    "Hello",
    "await_free",
    "check_free",
    "check_hello",
    "check_loopback",
    "greet",
    "limit_waits",
    "mark_of",
    "tune",
    "versions",
]

KEY_VARIABLE = "NETSPLIT_KEY"
_HANDSHAKE_S = 10.0
_WORDS = {"netsplit": "NetSplit", "torch": "torch", "python": "Python"}


@dataclass(frozen=True)
class Hello:
    """Who a worker is; `traits` (versions, the mark of its cluster) where somebody else started it."""

    rank: int
    world_size: int
    pid: int
    host: str
    agent: int  # process id of its torchrun
    traits: dict[str, str] = field(default_factory=dict)

    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, message: bytes) -> Hello:
        """Raises ValueError, TypeError or KeyError: it is none."""
        known = json.loads(message)
        return cls(**{name: known[name] for name in cls.__dataclass_fields__})

    def __str__(self) -> str:
        return f"the worker of rank {self.rank} (process {self.pid} on {self.host})"


@cache
def versions() -> dict[str, str]:
    """What the two ends of a connection must have alike: what they send are pickles of NetSplit and torch."""
    return {
        "netsplit": netsplit.__version__,
        "torch": metadata.version("torch").partition("+")[0],  # a build for CPU and one for CUDA agree
        "python": ".".join(platform.python_version_tuple()[:2]),
        "sources": _digest_of_sources(),
    }


def mark_of(spec: ClusterSpec) -> str:
    """Short text that differs where clusters differ: an agent left from an earlier one is found out."""
    return hashlib.sha256(repr((spec.name, spec.devices, spec.timeout_s)).encode()).hexdigest()[:10]


def _digest_of_sources() -> str:
    root = Path(netsplit.__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:10]


def check_hello(hello: Hello, spec: ClusterSpec) -> None:
    """Refuse a worker that does not fit.

    Raises:
        WorkerError: what differs, where, and what to do.
    """
    if hello.world_size != len(spec.devices):
        raise WorkerError(
            f"cluster '{spec.name}' has {len(spec.devices)} devices but torchrun started "
            f"{hello.world_size} workers: start one worker for each device."
        )
    if not spec.external:
        return
    theirs = hello.traits
    for trait, own in (versions() | {"cluster": mark_of(spec)}).items():
        if theirs.get(trait) == own:
            continue
        if trait in _WORDS and theirs:
            raise WorkerError(
                f"{hello} has {_WORDS[trait]} {theirs.get(trait)} but the controller has {own}: install "
                "the same version on all machines."
            )
        if trait == "sources" and theirs:
            raise WorkerError(
                f"{hello} has a different NetSplit {theirs.get('netsplit')} from the controller's "
                f"({theirs.get(trait)}, not {own}): bring all machines to the same commit."
            )
        raise WorkerError(
            f"{hello} was started for another configuration of cluster '{spec.name}' (--cluster "
            f"{theirs.get('cluster', 'is missing')}, not {mark_of(spec)}): on all machines, run the "
            "command that the controller printed."
        )


def greet(connection: Connection, key: bytes) -> Hello | None:
    """The Hello of who just connected; None for who is no worker.

    Raises:
        WorkerError: it knows another key.
    """
    limit_waits(connection, _HANDSHAKE_S)
    try:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        return Hello.unpacked(connection.recv_bytes())
    except AuthenticationError as error:
        raise WorkerError(
            f"a worker at {_address(connection)} and the controller have different {KEY_VARIABLE}: set the "
            "same on all machines."
        ) from error
    except (EOFError, OSError, ValueError, TypeError, KeyError, AssertionError):
        return None


def check_free(host: str, port: int, key: str = "cluster.port") -> None:
    """Raises WorkerError: nobody can listen at `host` and `port`; says why."""
    try:
        probe = socket.create_server((host, port))
    except OSError as error:
        raise WorkerError(_refused(host, port, error, key)) from error
    probe.close()


def await_free(host: str, port: int, seconds: float) -> None:
    """`check_free`, once whoever listens there, and is about to end, has; or after the seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(WorkerError):
            return check_free(host, port)
        time.sleep(0.2)
    return check_free(host, port)


def check_loopback(host: str) -> None:
    """Raises WorkerError: other machines may reach `host`, though all workers run on this one."""
    if not ip_address(socket.gethostbyname(host)).is_loopback:
        raise WorkerError(
            f"cluster.host is {host}, which other machines can reach, but all workers run on this one: "
            "leave it at 127.0.0.1, or set cluster.external=true."
        )


def _refused(host: str, port: int, error: OSError, key: str) -> str:
    reason = (error.strerror or str(error)).lower()
    if isinstance(error, PermissionError) or "in use" in reason:
        why = "is in use" if "in use" in reason else "is refused by the system"
        return (
            f"port {port} on {host} {why}: choose another {key}, or 0 for any free one (without "
            "cluster.external)."
        )
    return (
        f"cluster.host is {host}, where this process cannot listen ({reason}): give an address of this "
        "machine."
    )


def limit_waits(connection: Connection, seconds: float) -> None:
    """Let sends and receives that make no progress raise BlockingIOError; 0: they wait for ever."""
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with _socket(connection) as opened:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            opened.setsockopt(socket.SOL_SOCKET, option, value)


def tune(connection: Connection) -> None:
    """Send what is to be sent at once; notice within a minute that the machine at the other end is gone.

    A message of over 16 KiB goes in two writes; without `TCP_NODELAY` the second waits until the other end
    acknowledges the first, which it puts off for 40 ms."""
    with _socket(connection) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        limits = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 60_000}
        for name, value in limits.items():
            if hasattr(socket, name):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _socket(connection: Connection) -> socket.socket:
    return socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)


def _address(connection: Connection) -> str:
    with suppress(OSError), _socket(connection) as opened:
        return str(opened.getpeername()[0])
    return "an unknown address"
