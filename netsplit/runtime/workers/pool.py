"""The controller's side of a set of workers: start, call, watch, stop.

    controller ──spawns──► torchrun's agent ──forks──► worker of rank 0, 1, …
        └────────── one authenticated connection each ──────────┘

Workers outlive a method: a comparison starts them once. A worker that dies, raises or hangs ends
the pool with a `WorkerError` that names it, its place, and what others waited for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import cloudpickle

from netsplit.cluster.local import ClusterSpec
from netsplit.errors import WorkerError
from netsplit.files import absolute_path
from netsplit.graph.recording.whole import by_value
from netsplit.interrupts import interrupts_held, let_interrupt
from netsplit.program.instructions import Program
from netsplit.runtime.workers.diagnosis import Findings, Standing, diagnose, standing
from netsplit.runtime.workers.launch import (
    KEY_VARIABLE,
    Hello,
    Launcher,
    check_free,
    check_hello,
    check_loopback,
    external_command,
    greet,
    limit_waits,
    tune,
)
from netsplit.runtime.workers.messages import (
    FAILED,
    SIGN_OF_LIFE_S,
    STOP,
    CallWorkers,
    Heartbeat,
    Reply,
    Setup,
    Sign,
    packed,
    read_place,
)

__all__ = ["WorkerPool"]

_QUIET_S = 2.0  # several signs of life missed
_MARGIN_S = 2.0  # so that a waiting worker reports first


class Watchdog:
    """Detects workers without a sign of life, and programs that no longer progress."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.began = time.monotonic()
        self.alive: dict[int, float] = {}
        self.places: dict[int, Heartbeat] = {}  # from the last signs of life
        self.heartbeats: dict[int, Heartbeat | None] = {}
        self.since = self.began

    def lives(self, rank: int, place: Heartbeat | None) -> None:
        self.alive[rank] = time.monotonic()
        if place is not None:
            self.places[rank] = place

    def silent(self, ranks: list[int], seconds: float | None = None) -> list[int]:
        """Those of `ranks` without a sign of life for too long: stopped, or their machine is gone."""
        now, limit_s = time.monotonic(), self.limit_s if seconds is None else min(seconds, self.limit_s)
        return [rank for rank in ranks if now - self.alive.get(rank, self.began) > limit_s]

    def stands_still(self, places: dict[int, Heartbeat | None]) -> bool:
        """Whether no worker in a program has begun an instruction for longer than a peer would wait."""
        if places != self.heartbeats:
            self.heartbeats = places
            self.since = time.monotonic()
        # Outside a program (measuring, loading) no heartbeat moves, however long it takes.
        if all(place is None or place.index < 0 for place in places.values()):
            return False
        return time.monotonic() - self.since > self.limit_s + _MARGIN_S


log = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0
_AGENTS_END_S = 30.0  # torchrun's look, stop and end, on a busy machine
_AT_ONCE_S = 0.3
_LOOK_S = 0.2  # between looks at silent workers' places
_GRACE_S = 1.0  # for a failed worker's peers to report their waits


class WorkerPool:
    """Workers for every device of a cluster; `folder` is for their logs and heartbeats.

    Args:
        again: after workers that failed, whose agents elsewhere are given a while to let go of their port.

    Raises:
        WorkerError: a port is in use, the workers do not come up, or one of them does not fit.
    """

    def __init__(self, spec: ClusterSpec, folder: str | Path, again: bool = False) -> None:
        self.spec = spec
        self.again = again
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.connections: list[Connection] = []
        self.hellos: list[Hello] = []
        self.programs: dict[int, Program] = {}  # what the workers run, by the heartbeats' phase
        self.deployed: object | None = None  # the runtime whose tensors the workers hold
        self.free_bytes: dict[str, int] = {}  # device name -> its worker's free GPU memory
        self.failed = False
        self.carried: dict[ModuleType, None] = {}  # the user's modules, pickled by value
        self._asked = [-1] * len(spec.devices)  # messages to each worker since its set-up
        self._doing = "start"
        self._turn = threading.RLock()  # one thread at a time, so that answers match calls
        self._launcher: Launcher | None = None
        try:
            with interrupts_held():
                self._start()
        except BaseException as error:
            self.close(str(error) if isinstance(error, WorkerError) else "")
            raise

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """`function(worker, *args)` on all workers at once; their answers in rank order."""
        return self.call_each(function, [args] * len(self.connections))

    def call_one(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        self._doing = function.__name__.strip("_")
        with self._turn, interrupts_held():
            self._send(rank, CallWorkers(function, args))
            return self._gather([rank])[0]

    def call_each(
        self, function: Callable[..., Any], args: Sequence[tuple[Any, ...]], least_limit_s: float = 0.0
    ) -> list[Any]:
        """`function(worker, *args[rank])` on every worker; their answers in rank order.

        An interrupt ends the wait after all have been asked. A silence may last `least_limit_s` at least.
        """
        self._doing = function.__name__.strip("_")
        with self._turn, interrupts_held():
            for rank, own in enumerate(args):
                self._send(rank, CallWorkers(function, own))
            limit_s = max(least_limit_s, self.spec.timeout_s + SIGN_OF_LIFE_S)
            return self._gather(list(range(len(args))), limit_s)

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Call on all workers without waiting; the next call raises their errors."""
        self._doing = function.__name__.strip("_")
        with self._turn, interrupts_held(firmly=True):
            for rank in range(len(self.connections)):
                self._send(rank, CallWorkers(function, args))

    def note(self, traces: Sequence[str]) -> None:
        """Keep the stack traces of workers' errors."""
        with contextlib.suppress(OSError):
            (self.folder / "failure.log").write_text("\n".join(traces))

    def close(self, reason: str = "") -> None:
        """Stop all workers at once, telling them the `reason` of a failure."""
        farewell = FAILED + reason.encode() if reason else STOP
        with interrupts_held(firmly=True):
            for connection in self.connections:
                with contextlib.suppress(OSError):
                    limit_waits(connection, 0.2)
                    connection.send_bytes(farewell)
                connection.close()
            self.connections = []
            if self._launcher is not None:
                self._launcher.stop([hello.pid for hello in self.hellos])
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
                "cluster.external needs cluster.port, where the torchrun agents meet: give one."
            )
        if key is None:
            raise WorkerError(
                f"cluster.external needs the environment variable {KEY_VARIABLE}: set it to the same value "
                "on all machines."
            )
        check_free(spec.host, spec.port, seconds=_AGENTS_END_S if self.again and spec.external else 0.0)
        if not spec.external:
            check_loopback(spec.host)
        control_port = spec.port + 1 if spec.external else 0
        check_free(spec.host, control_port, "cluster.port (the controller listens at the next one)")
        with Listener((spec.host, control_port), backlog=len(spec.devices)) as listener:
            host, port = listener.address
            if spec.external:
                log.info("Waiting for %d workers: %s", len(spec.devices), external_command(spec, host, port))
            else:
                self._launcher = Launcher(spec, self.folder, f"{host}:{port}", key)
            self._accept(listener, key.encode())
        host = socket.gethostname()
        path = () if spec.external else absolute_path()
        setup = Setup(spec.devices, spec.timeout_s, str(self.folder), host, spec.cross_memory, path)
        for rank, connection in enumerate(self.connections):
            limit_waits(connection, max(0.5, spec.timeout_s / 2))  # twice: before and after some progress
            tune(connection)
            self._send(rank, setup)
        answers = self._gather(list(range(len(self.connections))), limit_s=_START_TIMEOUT_S)
        answered = zip(spec.devices, answers, strict=True)
        self.free_bytes = {device.name: nbytes for device, nbytes in answered if nbytes is not None}

    def _accept(self, listener: Listener, key: bytes) -> None:
        joined: dict[int, tuple[Hello, Connection]] = {}
        deadline = time.monotonic() + _START_TIMEOUT_S
        # The listener has no timeout of its own; its socket does.
        listener._listener._socket.settimeout(0.5)  # type: ignore[attr-defined]
        while len(joined) < len(self.spec.devices):
            let_interrupt()
            if self._launcher is not None:
                self._launcher.check(deadline, len(joined))
            self._forget_gone(joined)
            try:
                connection = listener.accept()
            except TimeoutError:
                continue
            try:
                hello = greet(connection, key)
                if hello is not None:
                    check_hello(hello, self.spec)
            except WorkerError as error:
                self.connections.append(connection)  # to be told of the failure
                raise error
            if hello is None:
                connection.close()
                continue
            joined[hello.rank] = (hello, connection)
            self.hellos = [joined[rank][0] for rank in sorted(joined)]
            self.connections = [joined[rank][1] for rank in sorted(joined)]
            if self.spec.external:
                log.info("%d of %d workers: %s", len(joined), len(self.spec.devices), hello)

    def _forget_gone(self, joined: dict[int, tuple[Hello, Connection]]) -> None:
        """Drop connections that became readable: a worker sends nothing after its Hello, so it has ended."""
        for rank, (hello, connection) in list(joined.items()):
            if connection.poll():
                log.warning("%s ended before all workers had started", hello)
                connection.close()
                del joined[rank]
        self.hellos = [joined[rank][0] for rank in sorted(joined)]
        self.connections = [joined[rank][1] for rank in sorted(joined)]

    def _send(self, rank: int, message: object) -> None:
        self._asked[rank] += 1
        try:
            with by_value(self.carried):
                data = packed(message)
            self.connections[rank].send_bytes(data)
        except OSError as error:
            how = "does not answer" if isinstance(error, BlockingIOError) else "died"
            places = {rank: self._place(rank, Watchdog(0.0)) for rank in range(len(self.connections))}
            raise self._failure(Findings([rank], {rank: how}, {}, [], self._standings(places))) from error

    def _gather(self, ranks: list[int], limit_s: float | None = None) -> list[Any]:
        replies: dict[int, Reply] = {}
        dead: dict[int, str] = {}
        watch = Watchdog(limit_s if limit_s is not None else self.spec.timeout_s + SIGN_OF_LIFE_S)
        failed_at: float | None = None
        places: dict[int, Heartbeat | None] = {}
        looked_s = watch.began
        while waiting := [rank for rank in ranks if rank not in replies and rank not in dead]:
            let_interrupt()
            late = failed_at is not None and time.monotonic() - failed_at > _AT_ONCE_S
            self._receive(replies, dead, watch, "was then ended by torchrun" if late else "died")
            failing = dead or any(reply.error for reply in replies.values())
            if not failing and time.monotonic() - looked_s < _LOOK_S:
                continue
            looked_s = time.monotonic()
            places = {rank: self._place(rank, watch) for rank in ranks}
            waiting = [rank for rank in waiting if rank not in replies and rank not in dead]
            if failing or watch.silent(waiting) or watch.stands_still(places):
                failed_at = failed_at if failed_at is not None else time.monotonic()
                if time.monotonic() - failed_at > _GRACE_S:
                    break
            else:
                failed_at = None
        if waiting or dead or any(reply.error for reply in replies.values()):
            places |= {rank: reply.place for rank, reply in replies.items() if reply.place is not None}
            raise self._failure(
                Findings(ranks, dead, replies, watch.silent(waiting, _QUIET_S), self._standings(places))
            )
        return [replies[rank].value for rank in ranks]

    def _receive(self, replies: dict[int, Reply], dead: dict[int, str], watch: Watchdog, ended: str) -> None:
        """Read from all workers; of late answers only errors count."""
        rank_of = {
            connection: rank
            for rank, connection in enumerate(self.connections)
            if rank not in replies and rank not in dead
        }
        for ready in wait(list(rank_of), timeout=_LOOK_S):
            rank = rank_of[ready]  # type: ignore[index]
            try:
                message = cloudpickle.loads(self.connections[rank].recv_bytes())
            except OSError as error:  # not EOFError
                dead[rank] = "does not answer" if isinstance(error, BlockingIOError) else ended
            except EOFError:
                dead[rank] = ended
            else:
                watch.lives(rank, message.place if isinstance(message, Sign) else None)
                if isinstance(message, Reply) and (message.error or message.number == self._asked[rank]):
                    replies[rank] = message

    def _place(self, rank: int, watch: Watchdog) -> Heartbeat | None:
        """A rank's place, from its file on this machine, else from its last sign of life."""
        if self.hellos[rank].host == socket.gethostname():
            return read_place(self.folder, rank)
        return watch.places.get(rank)

    def _standings(self, places: dict[int, Heartbeat | None]) -> dict[int, Standing]:
        standings = {rank: standing(self.programs, rank, place) for rank, place in places.items()}
        return {rank: each for rank, each in standings.items() if each is not None}

    def _failure(self, findings: Findings) -> WorkerError:
        first = next(iter(findings.dead), None)
        if first is not None and findings.dead[first] == "died" and self._launcher is not None:
            findings.dead[first] += self._launcher.exit_of(self.hellos[first].pid)
        traces = [f"rank {rank}\n{reply.trace}" for rank, reply in findings.replies.items() if reply.trace]
        if traces:
            self.note(traces)
        sentence = diagnose(findings, self.who, self._doing)
        self.failed = True
        self.close(sentence)
        return WorkerError(sentence)

    def who(self, rank: int) -> str:
        name = self.spec.devices[rank].name
        if rank >= len(self.hellos):
            return f"{name} (rank {rank})"
        hello = self.hellos[rank]
        return f"{name} (rank {rank}, process {hello.pid} on {hello.host})"
