"""The process of one device: joins the others, then does what the controller asks.

    torchrun … -m netsplit.runtime.worker_process --controller HOST:PORT

torchrun gives rank and world size; the controller, on the other end of a connection of its own,
gives the devices and then one call after another. The worker ends when that connection does.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from typing import NoReturn

import cloudpickle
import torch
import torch.distributed as dist

from netsplit.cluster.cluster import Device
from netsplit.errors import ConfigError, NetSplitError, WorkerError
from netsplit.runtime.faults import is_of_connection, one_line
from netsplit.runtime.transport.neighbours import Neighbours
from netsplit.runtime.transport.process import group_timeout
from netsplit.runtime.workers.launch import KEY_VARIABLE, Hello, tune, versions
from netsplit.runtime.workers.messages import (
    FAILED,
    SIGN_OF_LIFE_S,
    STOP,
    Heartbeat,
    HeartbeatFile,
    Reply,
    Setup,
    Sign,
    Worker,
    packed,
)

__all__ = ["main"]

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


def main() -> None:
    parser = argparse.ArgumentParser(prog="netsplit.runtime.worker_process", description=__doc__)
    parser.add_argument("--controller", required=True, help="HOST:PORT the controller printed")
    parser.add_argument("--cluster", default="", help="the mark of the cluster the controller printed")
    arguments = parser.parse_args()
    work(arguments.controller, arguments.cluster)


def work(controller: str, cluster: str = "") -> None:
    """Serve the controller at HOST:PORT until it disconnects; `cluster` is the mark it printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller and for torchrun
    connection = _connect(controller)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent = os.getppid()
    if sys.platform == "linux":  # it ends with torchrun, even if stopped or stuck
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    traits = versions() | {"cluster": cluster} if cluster else {}
    connection.send_bytes(Hello(rank, world_size, os.getpid(), socket.gethostname(), agent, traits).packed())
    line = _LogLine(connection, rank)
    while True:
        line.answer()


def _connect(controller: str) -> Connection:
    host, _, port = controller.rpartition(":")
    if KEY_VARIABLE not in os.environ:
        _end(f"the environment variable {KEY_VARIABLE} is not set: set it to the controller's value.")
    try:
        connection = Client((host, int(port)), authkey=os.environ[KEY_VARIABLE].encode())
    except (AuthenticationError, EOFError):
        _end(f"the controller at {controller} has a different {KEY_VARIABLE}: set the same on all machines.")
    except (OSError, ValueError) as error:
        _end(f"no controller answers at {controller}: {error}.")
    tune(connection)
    return connection


def _end(sentence: str) -> NoReturn:
    """Exit at once and print the reason on torchrun's terminal."""
    sys.stderr.write(f"netsplit: {sentence}\n")
    sys.stderr.flush()
    os._exit(1)


class _LogLine:
    """The connection to the controller, with threads that receive, show signs of life, and report an end by
    torchrun."""

    def __init__(self, connection: Connection, rank: int) -> None:
        self.connection = connection
        self.rank = rank
        self.worker: Worker | None = None  # once it is set up
        self.calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.answered = 0
        self.lock = threading.Lock()
        self.busy = threading.Event()
        self.terminated, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)  # sent even while the main thread is stuck
        for target in (self._listen, self._live, self._last_word):
            threading.Thread(target=target, daemon=True).start()

    def answer(self) -> None:
        message = self.calls.get()
        self.busy.set()
        try:
            task = cloudpickle.loads(message)
            if self.worker is None:
                self.worker = _join(self.rank, task)
                reply = Reply(_free_bytes(self.worker))
            else:
                reply = Reply(task.function(self.worker, *task.args))
        except WorkerError as error:
            reply = Reply(error=str(error), known=True, waited=True, trace=traceback.format_exc())
        except NetSplitError as error:
            reply = Reply(error=str(error), known=True, trace=traceback.format_exc())
        except Exception as error:
            lost = is_of_connection(error)
            reason = f"rank {self.rank} lost its peers ({one_line(error)})" if lost else one_line(error)
            reply = Reply(error=reason, known=lost, waited=lost, trace=traceback.format_exc())
        self.busy.clear()
        self._send(replace(reply, number=self.answered, place=self._place if reply.error else None))
        self.answered += 1

    def _listen(self) -> None:
        while True:
            try:
                message = self.connection.recv_bytes()
            except (EOFError, OSError):
                _end("the controller is gone.")
            if message == STOP:
                os._exit(0)
            if message.startswith(FAILED):
                _end(message.removeprefix(FAILED).decode())
            self.calls.put(message)

    def _live(self) -> None:
        while True:
            time.sleep(SIGN_OF_LIFE_S)
            if self.busy.is_set():
                self._send(Sign(self._place))

    def _last_word(self) -> None:
        os.read(self.terminated, 1)
        me = f"rank {self.rank} (process {os.getpid()} on {socket.gethostname()})"
        self._send(Reply(error=f"{me} was ended by torchrun", known=True, waited=True))
        _end("torchrun ends this worker.")

    @property
    def _place(self) -> Heartbeat | None:
        return None if self.worker is None else self.worker.heartbeat_file.place

    def _send(self, message: Reply | Sign) -> None:
        with self.lock:
            self.connection.send_bytes(packed(message))


def _join(rank: int, setup: Setup) -> Worker:
    if setup.path:
        sys.path[:] = setup.path
    torch.set_num_threads(1)
    device = setup.devices[rank]
    torch_device = torch.device(device.torch_device)
    if torch_device.type == "cuda":
        _check_gpu(device, torch_device)
        torch.cuda.set_device(torch_device)
    os.environ.setdefault(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"
    )  # the controller ends workers, with a reason
    dist.init_process_group("gloo", timeout=group_timeout(setup.timeout_s))
    neighbours = Neighbours.meet(rank) if setup.cross_memory else Neighbours()
    _hide_others()
    folder = setup.folder if setup.host == socket.gethostname() else None
    heartbeat_file = HeartbeatFile(folder, rank)
    return Worker(rank, device, setup.devices, torch_device, setup.timeout_s, heartbeat_file, neighbours)


def _free_bytes(worker: Worker) -> int | None:
    """Free bytes of this worker's GPU, without its own context."""
    if worker.torch_device.type != "cuda":
        return None
    torch.zeros(1, device=worker.torch_device)  # makes the context
    return torch.cuda.mem_get_info(worker.torch_device)[0]


def _hide_others() -> None:
    """Make `torch.distributed.is_initialized()` and the like answer as in the user's process."""
    for key in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(key, None)
    dist.is_initialized = lambda: False


def _check_gpu(device: Device, torch_device: torch.device) -> None:
    gpus = torch.cuda.device_count()
    if (torch_device.index or 0) >= gpus:
        raise ConfigError(
            f"device {device.name} is {torch_device}, but torch finds {gpus} GPUs on "
            f"{socket.gethostname()}: correct cluster.devices, or start torchrun on the machines in the "
            "devices' order."
        )


if __name__ == "__main__":
    main()
