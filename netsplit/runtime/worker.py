"""The process of one device: joins the others, then does what the controller asks.

    torchrun … -m netsplit.runtime.worker --controller HOST:PORT

torchrun gives rank and world size; the controller, on the other end of a connection of its own,
gives the devices and then one call after another. The worker ends when that connection does.
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from netsplit.cluster.cluster import Device
from netsplit.errors import NetSplitError
from netsplit.runtime.board import Board

__all__ = ["KEY_VARIABLE", "Call", "Hello", "Reply", "Setup", "Worker", "main"]

KEY_VARIABLE = "NETSPLIT_KEY"
SIGN_OF_LIFE_S = 0.5


@dataclass(frozen=True)
class Hello:
    rank: int
    world_size: int
    pid: int
    host: str


@dataclass(frozen=True)
class Setup:
    devices: tuple[Device, ...]
    timeout_s: float
    folder: str  # of the boards


@dataclass(frozen=True)
class Call:
    """`function(worker, *args)`, to be run on a worker."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Reply:
    value: Any = None
    error: str = ""  # one sentence
    known: bool = False  # a NetSplitError: the sentence is for the user as it is
    trace: str = ""


@dataclass
class Worker:
    """What a called function finds: who it is, and what earlier calls left in `memory`."""

    rank: int
    device: Device
    devices: tuple[Device, ...]
    torch_device: torch.device
    timeout_s: float
    board: Board
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def rank_of(self) -> dict[str, int]:
        return {device.name: rank for rank, device in enumerate(self.devices)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="netsplit.runtime.worker", description=__doc__)
    parser.add_argument("--controller", required=True, help="HOST:PORT the controller printed")
    host, _, port = parser.parse_args().controller.rpartition(":")
    connection = Client((host, int(port)), authkey=os.environ[KEY_VARIABLE].encode())
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    connection.send_bytes(cloudpickle.dumps(Hello(rank, world_size, os.getpid(), socket.gethostname())))
    _serve(_Line(connection), rank)


def _serve(line: _Line, rank: int) -> None:
    """The first message is the set-up, every other a call; each is answered."""
    worker: Worker | None = None

    def answer(message: bytes) -> Any:
        nonlocal worker
        task = cloudpickle.loads(message)
        if worker is None:
            worker = _join(rank, task)
            return None
        return task.function(worker, *task.args)

    while True:
        line.answer(answer)


class _Line:
    """The connection to the controller.

    One thread receives, and ends the process with the connection even when the main thread is stuck;
    another shows that the process lives while a call is under way.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.busy = threading.Event()
        for target in (self._listen, self._live):
            threading.Thread(target=target, daemon=True).start()

    def answer(self, function: Callable[[bytes], Any]) -> None:
        message = self.calls.get()
        self.busy.set()
        try:
            reply = Reply(function(message))
        except NetSplitError as error:
            reply = Reply(error=str(error), known=True, trace=traceback.format_exc())
        except Exception as error:
            reply = Reply(error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        self.busy.clear()
        self._send(reply)

    def _listen(self) -> None:
        while True:
            try:
                self.calls.put(self.connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)

    def _live(self) -> None:
        while True:
            self.busy.wait()
            time.sleep(SIGN_OF_LIFE_S)
            if self.busy.is_set():
                self._send(None)

    def _send(self, message: Reply | None) -> None:
        with self.lock:
            self.connection.send_bytes(cloudpickle.dumps(message))


def _join(rank: int, setup: Setup) -> Worker:
    torch.set_num_threads(1)
    device = setup.devices[rank]
    torch_device = torch.device(device.torch_device)
    if torch_device.type == "cuda":
        torch.cuda.set_device(torch_device)
    dist.init_process_group(_backend(setup.devices), timeout=timedelta(seconds=max(setup.timeout_s, 1.0)))
    return Worker(rank, device, setup.devices, torch_device, setup.timeout_s, Board(setup.folder, rank))


def _backend(devices: tuple[Device, ...]) -> str:
    """NCCL where all devices are CUDA's, gloo where any is a CPU."""
    kinds = {torch.device(device.torch_device).type for device in devices}
    return "cpu:gloo,cuda:nccl" if kinds == {"cuda"} else "gloo"


if __name__ == "__main__":
    main()
