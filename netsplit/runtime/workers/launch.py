"""Starting torchrun on this machine, and saying how to start it on others."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from netsplit.cluster.local import ClusterSpec
from netsplit.errors import WorkerError
from netsplit.runtime.workers.handshake import KEY_VARIABLE, mark_of
from netsplit.runtime.workers.modules import absolute_path, standard_first

__all__ = ["KEPT_MEMORY", "LOOK_S", "STOP_S", "Launcher", "external_command"]

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**32)}
"""For glibc: memory that is let go stays with the process. Otherwise each iteration's activations are pages
that the kernel hands out and clears anew: up to a fifth of a worker's time on ResNet-50 in small pieces."""

LOOK_S = 1
"""How often, in seconds, torchrun looks after its workers."""

STOP_S = 3
"""Seconds for the others to say what they waited for, when one has ended."""

_LIMIT_S = 120.0


class Launcher:
    """torchrun and its workers as a child of this process, which is at `controller`, HOST:PORT."""

    def __init__(self, spec: ClusterSpec, folder: Path, controller: str, key: str) -> None:
        self.spec = spec
        self.log = folder / "workers.log"
        # -P: what lies in this folder is found where `sys.path` has it, and not before all else.
        path = standard_first(absolute_path())
        given = (
            len(spec.devices), controller, f"{spec.host}:{spec.port}", str(folder / "torchelastic"),
            _start_method(spec),
        )  # fmt: skip
        begin = (
            f"import os, sys, threading; sys.path[:] = {path!r}; "
            # It ends at once when this process's end of its standard input closes; its workers end with it.
            "threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start(); "
            f"from netsplit.runtime.worker_agent import main; main(*{given!r})"  # loads torch: seconds
        )
        own = {KEY_VARIABLE: key, "OMP_NUM_THREADS": "1"}
        own |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA counts as NVML does, by which capacities are looked up
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
        """Raises WorkerError: torchrun has ended already, or it is late."""
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
        """' of SIGKILL' or ' with exit code 3', once torchrun has noticed; else nothing.

        Where torchrun itself was killed its workers ended with it: ', as its torchrun agent … is gone'.
        """
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
        """End everything; the workers, who know already, are given a moment to do so by themselves."""
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
    """What to run on each machine of a cluster whose workers this process does not start."""
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
