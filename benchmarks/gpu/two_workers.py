"""Steps with two worker processes: a GPU beside the CPU, and NCCL between two workers on one GPU.

NCCL refuses two processes on one GPU by host and bus number. Where each is given an NCCL_HOSTID of its own it
takes them for two machines and sends by sockets: its seconds mean nothing, but what it computes, leaks and
how it fails do.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil
import torch
from torch import nn

import netsplit
from benchmarks.gpu.one_worker import on, run
from benchmarks.gpu.plain import SGD, TOLERANCE, batches_of, difference, net, plain, strict
from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster
from netsplit.errors import NetSplitError
from netsplit.program.schedules import GPipe, OneFOneB
from netsplit.runtime.workers.launch import KEY_VARIABLE, mark_of

__all__ = ["gpu_and_cpu", "nccl", "same_gpu", "stopped_peer"]

LOSS = nn.CrossEntropyLoss()
SPLIT: dict[str, Any] = {
    "partitioner": "round_robin",
    "optimizer": SGD,
    "profile": "predicted",
    "progress": False,
}


def gpu_and_cpu(device: str) -> dict[str, Any]:
    """Operators in turn on the device and on a CPU worker, with clipping."""
    strict()
    batches = batches_of(4, 64)
    wanted = plain(net(), LOSS, batches, 4, device, clip_norm=0.1)
    with netsplit.parallelize(
        net(), LOSS, batches[0], cluster=on(device, "cpu"), schedule=OneFOneB(4), clip_norm=0.1, **SPLIT
    ) as parallel:
        trained = run(parallel, batches)
        memory = {
            hello.pid: psutil.Process(hello.pid).memory_info().rss for hello in parallel.runtime.pool.hellos
        }
        links = {
            f"{p} to {q}": [link.latency_s, link.bandwidth]
            for (p, q), link in parallel.plan.problem.cluster.links.items()
        }
    return {
        "largest_difference": {"clipped": difference(*trained, wanted)}, "tolerance": TOLERANCE,
        "resident_bytes": list(memory.values()), "links_s_and_bytes_per_s": links,
    }  # fmt: skip


def nccl(device: str) -> dict[str, Any]:
    """Clipping and 1f1b on two workers, then programs of other sizes on these; replicas on two others; bytes
    after each."""
    strict()
    batches = batches_of(4, 64)
    clipped = plain(net(), LOSS, batches, 4, device, clip_norm=0.1)
    wanted = plain(net(), LOSS, batches, 4, device)
    parameters = {name for name, _ in net().named_parameters()}
    apart, held = {}, []
    with _two_hosts(device) as spec:
        session = partial(netsplit.parallelize, loss=LOSS, batch=batches[0], cluster=spec)
        with session(net(), schedule=OneFOneB(4), clip_norm=0.1, **SPLIT) as parallel:
            apart["1f1b, clipped"] = difference(*run(parallel, batches), clipped)
            held.append(_used(device))
            for samples in (48, 32):  # other programs on the same workers
                parallel.train_batch(*batches_of(1, samples)[0])
                held.append(_used(device))
    with _two_hosts(device) as spec:
        options = SPLIT | {"partitioner": "ddp"}
        with netsplit.parallelize(
            net(), LOSS, batches[0], cluster=spec, schedule=GPipe(4), **options
        ) as parallel:
            losses, state = run(parallel, batches)
            some = {name: tensor for name, tensor in wanted[1].items() if name in parameters}
            apart["replicas"] = difference(losses, state, (wanted[0], some))
            held.append(_used(device))
    return {"largest_difference": apart, "tolerance": TOLERANCE, "used_bytes": held}


def stopped_peer(device: str) -> dict[str, Any]:
    """One worker is stopped while the other waits for it."""
    batches = batches_of(2, 64)
    raised, sentence, began = "", "", 0.0
    with (
        _two_hosts(device, timeout_s=5.0) as spec,
        netsplit.parallelize(
            net(), LOSS, batches[0], cluster=spec, schedule=OneFOneB(4), **SPLIT
        ) as parallel,
    ):
        parallel.train_batch(*batches[0])
        stopped = parallel.runtime.pool.hellos[1].pid
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        try:
            parallel.train_batch(*batches[1])
        except NetSplitError as error:
            raised, sentence = type(error).__name__, str(error)[:500]
        finally:
            os.kill(stopped, signal.SIGCONT)
        after_s = time.monotonic() - began
    return {"raised": raised, "sentence": sentence, "after_s": after_s}


def same_gpu(device: str) -> dict[str, Any]:
    """Two devices on one GPU, without NCCL_HOSTID."""
    raised, sentence = "", ""
    try:
        netsplit.parallelize(
            net(), LOSS, batches_of(1, 64)[0], cluster=on(device, device), schedule=GPipe(4), **SPLIT
        ).close()
    except NetSplitError as error:
        raised, sentence = type(error).__name__, str(error)
    return {"raised": raised, "sentence": sentence, "device": device}


@contextmanager
def _two_hosts(device: str, timeout_s: float = 60.0) -> Iterator[ClusterSpec]:
    """Two workers on `device` that NCCL takes for two machines."""
    devices = [LocalDevice("d0", device), LocalDevice("d1", device)]
    spec = local_cluster("two", devices, timeout_s=timeout_s, port=_free_port(), external=True)
    key = os.environ[KEY_VARIABLE] = secrets.token_hex(16)
    own = {KEY_VARIABLE: key, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2"}
    own |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "netsplit.runtime.worker_process",
        "--controller", f"{spec.host}:{spec.port + 1}", "--cluster", mark_of(spec),
    ]  # fmt: skip
    workers: list[subprocess.Popen[bytes]] = []
    # Again and again: until the controller listens there is nobody to join.
    starter = "import subprocess, sys, time\nwhile True: subprocess.call(sys.argv[1:]); time.sleep(0.3)"
    try:
        for rank in range(2):
            env = {
                **os.environ,
                **own,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "NCCL_HOSTID": f"host{rank}",
            }
            workers.append(
                subprocess.Popen([sys.executable, "-c", starter, *command], env=env, start_new_session=True)
            )
        yield spec
    finally:
        for worker in workers:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()


def _used(device: str) -> int:
    """Bytes of the GPU in use by all processes."""
    if device == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def _free_port() -> int:
    """A port that is free, and the next one too."""
    while True:
        with socket.socket() as one, socket.socket() as next_one:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                next_one.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
