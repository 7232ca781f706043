"""The controller's side of a set of workers: start, call, watch, stop.

    controller ──spawns──► torchrun ──spawns──► worker of rank 0, 1, …
        └────────── one authenticated connection each ──────────┘

Workers outlive a method: a comparison starts them once. A worker that dies, raises or hangs ends
the pool with a `WorkerError` that says who, where and waiting for what.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any, Self

import cloudpickle

from netsplit.cluster.local import ClusterSpec
from netsplit.errors import WorkerError
from netsplit.runtime.board import Place, read_place
from netsplit.runtime.worker import KEY_VARIABLE, SIGN_OF_LIFE_S, Call, Hello, Reply, Setup

__all__ = ["WorkerPool"]

log = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_GRACE_S = 3.0  # for the peers of a failed worker to say what they waited for


class WorkerPool:
    """Workers for every device of a cluster.

    Args:
        spec: the devices, in rank order, and the timeout.
        folder: for the workers' logs and boards.

    Raises:
        WorkerError: the port is in use, or the workers do not come up.
    """

    def __init__(self, spec: ClusterSpec, folder: str | Path) -> None:
        self.spec = spec
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.connections: list[Connection] = []
        self.hellos: list[Hello] = []
        self.describe: Callable[[int, Place], str] | None = None  # words for a rank's place
        self.failed = False
        self._doing = "start"
        self._launcher: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """`function(worker, *args)` on all workers at once; their answers in rank order."""
        return self.call_each(function, [args] * len(self.connections))

    def call_one(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        """`function(worker, *args)` on one worker."""
        self._doing = function.__name__.strip("_")
        self._send(rank, Call(function, args))
        return self._gather([rank])[0]

    def call_each(self, function: Callable[..., Any], args: Sequence[tuple[Any, ...]]) -> list[Any]:
        """`function(worker, *args[rank])` on every worker; their answers in rank order."""
        self._doing = function.__name__.strip("_")
        for rank, own in enumerate(args):
            self._send(rank, Call(function, own))
        return self._gather(list(range(len(args))))

    def close(self) -> None:
        """Stop all workers, at once and whatever they are doing."""
        for connection in self.connections:
            connection.close()
        self.connections = []
        if self._launcher is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._launcher.wait(0.5)
            for hello in self.hellos:
                if hello.host == socket.gethostname():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(hello.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._launcher.pid, signal.SIGTERM)
            try:
                self._launcher.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._launcher.pid, signal.SIGKILL)
                self._launcher.wait()
            self._launcher = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        spec = self.spec
        key = os.environ.get(KEY_VARIABLE) if spec.external else secrets.token_hex(16)
        if spec.external and spec.port == 0:
            raise WorkerError(
                "cluster.external needs cluster.port, where all torchrun agents meet: give one."
            )
        if key is None:
            raise WorkerError(
                f"cluster.external needs the environment variable {KEY_VARIABLE}, the same on all machines."
            )
        if not spec.external:
            _check_free(spec.host, spec.port)
        control_port = spec.port + 1 if spec.external and spec.port else 0
        with Listener((spec.host, control_port), authkey=key.encode(), backlog=len(spec.devices)) as listener:
            host, port = listener.address
            if spec.external:
                log.info("waiting for %d workers: %s", len(spec.devices), _external_command(spec, host, port))
            else:
                self._launch(f"{host}:{port}", key)
            self._accept(listener)
        setup = Setup(spec.devices, spec.timeout_s, str(self.folder))
        for rank in range(len(self.connections)):
            self._send(rank, setup)
        self._gather(list(range(len(self.connections))), limit_s=_START_TIMEOUT_S)

    def _launch(self, controller: str, key: str) -> None:
        command = [
            sys.executable, "-m", "torch.distributed.run",
            "--nnodes=1", f"--nproc-per-node={len(self.spec.devices)}", "--max-restarts=0",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={self.spec.host}:{self.spec.port}",
            f"--log-dir={self.folder / 'torchelastic'}",
            "-m", "netsplit.runtime.worker", "--controller", controller,
        ]  # fmt: skip
        # What this process can import, the workers can: a user's optimiser may live beside his script.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        own = {KEY_VARIABLE: key, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        if self.spec.host.startswith("127."):
            own["GLOO_SOCKET_IFNAME"] = "lo"
        with (self.folder / "workers.log").open("wb") as output:
            # A session of its own: Ctrl-C reaches the controller alone, which then stops the workers.
            self._launcher = subprocess.Popen(
                command, env={**os.environ, **own}, stdout=output, stderr=output, start_new_session=True
            )

    def _accept(self, listener: Listener) -> None:
        found: dict[int, tuple[Hello, Connection]] = {}
        deadline = time.monotonic() + _START_TIMEOUT_S
        # The listener has no timeout of its own; its socket does.
        listener._listener._socket.settimeout(1.0)  # type: ignore[attr-defined]
        while len(found) < len(self.spec.devices):
            try:
                connection = listener.accept()
            except TimeoutError:
                self._check_starting(deadline, len(found))
                continue
            hello = cloudpickle.loads(connection.recv_bytes())
            if hello.world_size != len(self.spec.devices):
                raise WorkerError(
                    f"cluster '{self.spec.name}' has {len(self.spec.devices)} devices but torchrun started "
                    f"{hello.world_size} workers: start one worker a device."
                )
            found[hello.rank] = (hello, connection)
            self.hellos = [found[rank][0] for rank in sorted(found)]
            self.connections = [found[rank][1] for rank in sorted(found)]

    def _check_starting(self, deadline: float, arrived: int) -> None:
        if self._launcher is not None and self._launcher.poll() is not None:
            raise WorkerError(
                f"the workers ended before they were up (exit code {self._launcher.returncode}): "
                f"{self._last_log_line()}; see {self.folder / 'workers.log'}."
            )
        if time.monotonic() > deadline and self._launcher is not None:
            raise WorkerError(
                f"only {arrived} of {len(self.spec.devices)} workers came up within {_START_TIMEOUT_S:g} s; "
                f"see {self.folder / 'workers.log'}."
            )

    def _last_log_line(self) -> str:
        try:
            lines = (self.folder / "workers.log").read_text(errors="replace").splitlines()
        except OSError:
            return "no log"
        errors = [line.strip() for line in lines if "Error" in line]
        return (errors or [line.strip() for line in lines if line.strip()] or ["no output"])[-1]

    def _send(self, rank: int, message: object) -> None:
        try:
            self.connections[rank].send_bytes(cloudpickle.dumps(message))
        except (BrokenPipeError, ConnectionError, OSError) as error:
            raise self._failure({rank: "died"}, {}) from error

    def _gather(self, ranks: list[int], limit_s: float | None = None) -> list[Any]:
        replies: dict[int, Reply] = {}
        dead: dict[int, str] = {}
        watch = _Watch(self, limit_s if limit_s is not None else self.spec.timeout_s + SIGN_OF_LIFE_S)
        failed_at: float | None = None
        while len(replies) + len(dead) < len(ranks):
            open_ = {self.connections[r]: r for r in ranks if r not in replies and r not in dead}
            for ready in wait(list(open_), timeout=0.2):
                rank = open_[ready]  # type: ignore[index]
                try:
                    reply = cloudpickle.loads(self.connections[rank].recv_bytes())
                except (EOFError, OSError):
                    dead[rank] = "died"
                    continue
                watch.lives(rank)
                if reply is not None:
                    replies[rank] = reply
            if dead or any(reply.error for reply in replies.values()):
                failed_at = failed_at if failed_at is not None else time.monotonic()
                if time.monotonic() - failed_at > _GRACE_S:
                    break
            else:
                waiting = [rank for rank in ranks if rank not in replies]
                dead.update(dict.fromkeys(watch.silent(waiting), "does not answer"))
                if not dead and watch.stands_still():
                    dead.update(dict.fromkeys(waiting, "hangs"))
        if dead or any(reply.error for reply in replies.values()):
            raise self._failure(dead, replies)
        return [replies[rank].value for rank in ranks]

    def _failure(self, dead: dict[int, str], replies: dict[int, Reply]) -> WorkerError:
        """One sentence: the first cause, then what the others were waiting for."""
        raised = {r: reply.error for r, reply in replies.items() if reply.error and not reply.known}
        told = [reply.error for reply in replies.values() if reply.error and reply.known]
        parts = [f"worker {self._who(r)} {how}{self._where(r)}" for r, how in dead.items()]
        parts += [f"worker {self._who(r)} raised {error}{self._where(r)}" for r, error in raised.items()]
        if not parts:
            accused = [r for r in range(len(self.hellos)) if r not in replies]
            parts = [f"worker {self._who(r)} does not answer{self._where(r)}" for r in accused]
        self._log_traces(replies)
        self.failed = True
        self.close()
        slow = not any(how == "died" for how in dead.values()) and not raised
        cure = " (raise cluster.timeout_s if it is only slow)" if slow else ""
        return WorkerError("; ".join([*parts, *told]) + cure + ".")

    def _log_traces(self, replies: dict[int, Reply]) -> None:
        traces = [f"rank {rank}\n{reply.trace}" for rank, reply in replies.items() if reply.trace]
        if traces:
            with contextlib.suppress(OSError):
                (self.folder / "failure.log").write_text("\n".join(traces))

    def _who(self, rank: int) -> str:
        name = self.spec.devices[rank].name
        if rank >= len(self.hellos):
            return f"{name} (rank {rank})"
        hello = self.hellos[rank]
        return f"{name} (rank {rank}, process {hello.pid} on {hello.host})"

    def _where(self, rank: int) -> str:
        place = read_place(self.folder, rank)
        if place is None or place.index < 0 or self.describe is None:
            return f" during '{self._doing}'"
        return f" at its {self.describe(rank, place)}"


class _Watch:
    """Notices workers that show no sign of life, and a program in which nothing moves any more."""

    def __init__(self, pool: WorkerPool, limit_s: float) -> None:
        self.pool = pool
        self.limit_s = limit_s
        self.began = time.monotonic()
        self.alive: dict[int, float] = {}
        self.seen: list[Place | None] = []
        self.since = self.began

    def lives(self, rank: int) -> None:
        self.alive[rank] = time.monotonic()

    def silent(self, ranks: list[int]) -> list[int]:
        """Those of `ranks` whose process is stopped, or whose machine is gone."""
        now = time.monotonic()
        return [rank for rank in ranks if now - self.alive.get(rank, self.began) > self.limit_s]

    def stands_still(self) -> bool:
        """Whether inside a program no worker has begun an instruction for longer than a peer would wait."""
        places = [read_place(self.pool.folder, r) for r in range(len(self.pool.connections))]
        if places != self.seen:
            self.seen = places
            self.since = time.monotonic()
        # Outside a program (measuring, loading) nothing moves on the boards, however long it takes.
        if all(place is None or place.index < 0 for place in places):
            return False
        return time.monotonic() - self.since > self.limit_s + _GRACE_S


def _check_free(host: str, port: int) -> None:
    if port == 0:
        return
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            raise WorkerError(
                f"port {port} on {host} is in use: choose another with cluster.port=..., or 0 for a free one."
            ) from error


def _external_command(spec: ClusterSpec, host: str, port: int) -> str:
    return (
        f"on each machine run 'torchrun --nnodes=... --nproc-per-node=... --rdzv-backend=c10d "
        f"--rdzv-endpoint={spec.host}:{spec.port} -m netsplit.runtime.worker --controller {host}:{port}' "
        f"with {KEY_VARIABLE} set"
    )
