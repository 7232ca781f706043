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
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, calls), daemon=True).start()
    setup = calls.get()
    connection.send_bytes(cloudpickle.dumps(_attempt(lambda: _join(rank, setup), calls)))
    worker = calls.get()
    while True:
        call = calls.get()
        reply = _attempt(lambda call=call: call.function(worker, *call.args))  # type: ignore[misc]
        connection.send_bytes(cloudpickle.dumps(reply))


def _listen(connection: Connection, calls: queue.SimpleQueue[Any]) -> None:
    """Feed the queue; end the process with the connection, even when the main thread is stuck."""
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)
        calls.put(cloudpickle.loads(message))


def _attempt(action: Callable[[], Any], keep: queue.SimpleQueue[Any] | None = None) -> Reply:
    try:
        value = action()
    except NetSplitError as error:
        return Reply(error=str(error), known=True, trace=traceback.format_exc())
    except Exception as error:
        return Reply(error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
    if keep is not None:
        keep.put(value)
        return Reply()
    return Reply(value)


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
