"""Starting workers by torchrun on this machine, or the command to start them on others; how workers and
controller meet, and what must agree before anything is loaded.

    worker ── authenticated connection ──► controller
           ── Hello: who, where, versions ──►   refuses in one sentence, or sends the set-up

A Hello is JSON rather than a pickle, to be readable across versions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from ipaddress import ip_address
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path

import psutil

import netsplit
from netsplit.cluster.local import ClusterSpec
from netsplit.errors import WorkerError
from netsplit.files import absolute_path, standard_first

__all__ = [
    "KEPT_MEMORY", "KEY_VARIABLE", "LOOK_S", "STOP_S", "Hello", "Launcher", "check_free",
    "check_hello", "check_loopback", "external_command", "greet", "limit_waits", "mark_of", "tune",
    "versions",
]  # fmt: skip

KEY_VARIABLE = "NETSPLIT_KEY"
_HANDSHAKE_S = 10.0
_WORDS = {"netsplit": "NetSplit", "torch": "torch", "python": "Python"}


@dataclass(frozen=True)
class Hello:
    """A worker's identity; `traits` (versions, its cluster's mark) if the user started it."""

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
        """Raises ValueError, TypeError or KeyError for anything else."""
        known = json.loads(message)
        return cls(**{name: known[name] for name in cls.__dataclass_fields__})

    def __str__(self) -> str:
        return f"the worker of rank {self.rank} (process {self.pid} on {self.host})"


@cache
def versions() -> dict[str, str]:
    """What both ends must have alike, as they exchange pickles of NetSplit and torch."""
    return {
        "netsplit": netsplit.__version__,
        "torch": metadata.version("torch").partition("+")[0],  # a build for CPU and one for CUDA agree
        "python": ".".join(platform.python_version_tuple()[:2]),
        "sources": _digest_of_sources(),
    }


def mark_of(spec: ClusterSpec) -> str:
    """Short text that differs between clusters, to detect an agent left from an earlier one."""
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
    """The Hello of a new connection; None if it is no worker; raises WorkerError for another key."""
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


def check_free(host: str, port: int, key: str = "cluster.port", seconds: float = 0.0) -> None:
    """Raises WorkerError if nobody can listen at `host` and `port`; an earlier listener has some seconds to
    end."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_server((host, port)).close()
        except OSError as error:
            if time.monotonic() >= deadline:
                raise WorkerError(_refused(host, port, error, key)) from error
        time.sleep(0.2)


def check_loopback(host: str) -> None:
    """Raises WorkerError if other machines can reach `host` although all workers run on this one."""
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
    """Let stalled sends and receives raise BlockingIOError; 0: they wait for ever."""
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with _socket(connection) as opened:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            opened.setsockopt(socket.SOL_SOCKET, option, value)


def tune(connection: Connection) -> None:
    """Set `TCP_NODELAY`, and notice within a minute that the peer's machine is gone."""
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


KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""glibc keeps freed memory; otherwise the kernel clears new pages in each iteration."""

LOOK_S = 1
"""Seconds between torchrun's checks of its workers."""

STOP_S = 3
"""Seconds for other workers to report what they waited for, after one has ended."""

_LIMIT_S = 120.0


class Launcher:
    """torchrun and its workers as a child of this process, which is at `controller`, HOST:PORT."""

    def __init__(self, spec: ClusterSpec, folder: Path, controller: str, key: str) -> None:
        self.spec = spec
        self.log = folder / "workers.log"
        # -P: do not put this folder first in `sys.path`.
        path = standard_first(absolute_path())
        arguments = (
            len(spec.devices), controller, f"{spec.host}:{spec.port}", str(folder / "torchelastic"),
            _start_method(spec),
        )  # fmt: skip
        begin = (
            f"import os, sys, threading; sys.path[:] = {path!r}; "
            # It and its workers end when its standard input closes.
            "threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start(); "
            f"from netsplit.runtime.worker_agent import main; main(*{arguments!r})"  # loads torch: seconds
        )
        own = {KEY_VARIABLE: key, "OMP_NUM_THREADS": "1"}
        own |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA counts GPUs as NVML does
        with self.log.open("wb") as output:
            # A session of its own: Ctrl-C reaches the controller alone, which then stops the workers.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", begin],
                env={**KEPT_MEMORY, **os.environ, **own},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def check(self, deadline: float, arrived: int) -> None:
        """Raises WorkerError if torchrun has ended or the workers are late."""
        if self.process.poll() is not None:
            raise WorkerError(
                f"the workers ended while starting (exit code {self.process.returncode}): "
                f"{self._last_line()}; see {self.log}."
            )
        if time.monotonic() > deadline:
            raise WorkerError(
                f"only {arrived} of {len(self.spec.devices)} workers started within {_LIMIT_S:g} s; see "
                f"{self.log}."
            )

    def exit_of(self, pid: int) -> str:
        """' of SIGKILL', ' with exit code 3', or that torchrun itself is gone; "" while unknown."""
        pattern = re.compile(rf"exitcode: (-?\d+)\) local_rank: \d+ \(pid: {pid}\)")
        deadline = time.monotonic() + 1.5 * LOOK_S
        while time.monotonic() < deadline:
            if (self.process.poll() or 0) < 0:
                return f", as its torchrun agent (process {self.process.pid}) is gone"
            with contextlib.suppress(OSError):
                match = pattern.search(self.log.read_text(errors="replace"))
                if match is not None:
                    return _words(int(match[1]))
            time.sleep(0.05)
        return ""

    def stop(self, workers: Sequence[int]) -> None:
        """End everything, after giving workers a moment to end by themselves."""
        deadline = time.monotonic() + 0.5
        while any(_runs(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.01)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _last_line(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return "no log"
        errors = [line.strip() for line in lines if "Error" in line]
        return (errors or [line.strip() for line in lines if line.strip()] or ["no output"])[-1]


def external_command(spec: ClusterSpec, host: str, port: int) -> str:
    """The command to run on each machine of a cluster of external workers."""
    stop = f"--shutdown-timeout={STOP_S} " if _torch_has_shutdown_timeout() else ""
    return (
        f"on each machine run 'torchrun --nnodes=... --nproc-per-node=... --max-restarts=0 "
        f"--monitor-interval={LOOK_S} {stop}--rdzv-backend=c10d "
        f"--rdzv-endpoint={spec.host}:{spec.port} -m netsplit.runtime.worker_process "
        f"--controller {host}:{port} --cluster {mark_of(spec)}' with {KEY_VARIABLE} set"
    )


def _torch_has_shutdown_timeout() -> bool:
    from torch.distributed.launcher.api import LaunchConfig

    return "shutdown_timeout" in LaunchConfig.__dataclass_fields__


def _start_method(spec: ClusterSpec) -> str:
    cuda = any(device.torch_device.startswith("cuda") for device in spec.devices)
    return "spawn" if cuda else "fork"


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _words(code: int) -> str:
    if code >= 0:
        return f" with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (stopped from outside, or the machine ran out of memory)" if code == -signal.SIGKILL else ""
    return f" of {name}{hint}"
