"""A cluster whose devices all sit in this machine, as a config file describes it; and its processors.

affinity   which processors the process may run on       taskset, a batch system
quota      processor seconds a second of its group       a container's limit, in the files of cgroups
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import psutil

from netsplit.cluster.catalogue import CONTEXT_BYTES
from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.cluster.nvml import found_gpus, visible_gpu
from netsplit.errors import ConfigError, NetSplitError
from netsplit.settings import OffloadName

__all__ = [
    "ClusterSpec", "LocalDevice", "allowed_processors", "check_offload", "given_capacity", "given_count",
    "given_number", "given_rate", "given_speed", "gpu_cluster", "local_cluster", "parse_bytes",
    "processor_quota", "shared_processors", "usable_processors",
]  # fmt: skip

UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base ** (power + 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
    for power, letter in enumerate("kmgt")
}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d+)?)\s*([A-Za-z]*)\s*")
TORCH_DEVICE = re.compile(r"cpu|cuda:(\d+)")
_ROOT = Path("/")
BETWEEN_PROCESSES = Link(60e-6, 1 / 6e9)
"""Default link of CPU workers on one host, as `netsplit probe` measures it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalDevice:
    """One device as a config gives it."""

    name: str
    torch_device: str = "cpu"  # "cpu" or "cuda:<index>"
    capacity: int | str = "all"  # bytes, "24MiB", or "all" memory; of a GPU without its context


@dataclass(frozen=True)
class ClusterSpec:
    """Devices in rank order, and how their workers meet; missing links are probed."""

    name: str
    devices: tuple[Device, ...]
    timeout_s: float
    port: int  # 0: a free one
    host: str = "127.0.0.1"
    latency_s: float | None = None  # None: probe
    bandwidth: float | None = None  # bytes per second; None: probe
    external: bool = False  # workers are started by the user, with torchrun on each machine
    cross_memory: bool = True  # workers on a host may read one another's memory

    @property
    def stated_links(self) -> dict[tuple[str, str], Link] | None:
        """Every pair's link, if given."""
        if self.bandwidth is None:
            return None
        link = Link(self.latency_s or 0.0, 1.0 / self.bandwidth)
        return {(p.name, q.name): link for p, q in permutations(self.devices, 2)}

    @property
    def unprobed(self) -> Cluster:
        """The devices without workers; links as stated, else as the driver reports between GPUs, else
        `BETWEEN_PROCESSES`."""
        if (links := self.stated_links) is None:
            promised = _promised_links(self.devices)
            links = {
                (p.name, q.name): promised.get((p.torch_device, q.torch_device), BETWEEN_PROCESSES)
                for p, q in permutations(self.devices, 2)
            }
        return Cluster(self.name, self.devices, links)


def check_offload(
    offload: OffloadName, devices: Sequence[Device], compile_backend: str | None = None
) -> None:
    """Refuse to offload from devices that compute in the host's memory."""
    if compile_backend is not None and offload in ("activations", "both"):
        raise ConfigError(
            f"offload is {offload}, but compile_backend saves activations in its own way: give optimizer "
            "or none, or leave compile_backend out."
        )
    on_cpu = [device.name for device in devices if device.torch_device.startswith("cpu")]
    if offload != "none" and on_cpu:
        raise ConfigError(
            f"offload is {offload}, but {on_cpu[0]} already computes in its host's memory: give none, or "
            "choose a cluster of GPUs."
        )


def local_cluster(
    name: str,
    devices: Sequence[LocalDevice],
    timeout_s: float = 60.0,
    port: int = 0,
    latency_s: float | None = None,
    bandwidth: float | None = None,
    host: str = "127.0.0.1",
    external: bool = False,
    cross_memory: bool = True,
) -> ClusterSpec:
    """Devices of this machine, of their real kind and memory.

    With `external` the workers are started by the user, with torchrun on each machine, and meet this
    process at `host`.

    Raises:
        ConfigError: no device, a name given twice, a size that cannot be read, or a GPU that is not there.
    """
    if not devices:
        raise ConfigError("cluster.devices is empty: list at least one device.")
    names = [device.name for device in devices]
    repeated = sorted({entry for entry in names if names.count(entry) > 1})
    if repeated:
        raise ConfigError(
            f"cluster.devices names {', '.join(repeated)} more than once: give each its own name."
        )
    if timeout_s <= 0:
        raise ConfigError(f"cluster.timeout_s is {timeout_s}: give more than 0 seconds.")
    if not 0 <= port < 2**16:
        raise ConfigError(f"cluster.port is {port}: give 0 for a free one, or a number up to 65535.")
    if (latency_s is None) != (bandwidth is None):
        raise ConfigError(
            "cluster.latency_s and cluster.bandwidth belong together: give both, or neither to probe."
        )
    if latency_s is not None and bandwidth is not None and (latency_s < 0 or bandwidth <= 0):
        raise ConfigError(
            f"cluster.latency_s is {latency_s} and cluster.bandwidth {bandwidth}: give a latency of 0 or "
            "more and a bandwidth above 0."
        )
    specs = tuple(_device(device, f"cluster.devices[{i}]") for i, device in enumerate(devices))
    if not external:  # otherwise the workers say where they are
        hostname, processors = socket.gethostname(), usable_processors()
        specs = tuple(replace(device, host=hostname, processors=processors) for device in specs)
    return ClusterSpec(name, specs, timeout_s, port, host, latency_s, bandwidth, external, cross_memory)


def gpu_cluster(
    name: str,
    capacity: int | str = "all",
    cpus: int = 0,
    timeout_s: float = 60.0,
    port: int = 0,
    host: str = "127.0.0.1",
    external: bool = False,
    cross_memory: bool = True,
) -> ClusterSpec:
    """Every visible GPU as a device "cuda:0", ..., and so many CPU devices of one thread, "cpu:0", ...

    `capacity` is of each GPU; what else is asked, and refused, is as for `local_cluster`.
    """
    if cpus < 0:
        raise ConfigError(f"cluster.cpus is {cpus}: give 0 or more.")
    try:
        gpus = found_gpus().gpus
    except ConfigError as error:
        raise ConfigError(f"cluster asks for all GPUs, but {error}: choose another, such as cpu2.") from error
    devices = [LocalDevice(gpu.device, gpu.device, capacity) for gpu in gpus]
    devices += [LocalDevice(f"cpu:{i}") for i in range(cpus)]
    return local_cluster(
        name, devices, timeout_s, port, host=host, external=external, cross_memory=cross_memory
    )


def parse_bytes(
    size: int | str, key: str = "capacity", accepted: str = "bytes, or a size such as 24MiB, 1.5GB or all"
) -> int:
    """Bytes of 25165824, "25165824", "24MiB" or "1.5 GB"; raises ConfigError, naming `key`, for others."""
    nbytes = int(_size(str(size), key, accepted))
    if nbytes < 1:
        raise ConfigError(f"{key} is {size!r}: give more than 0 bytes.")
    return nbytes


def _device(device: LocalDevice, key: str) -> Device:
    match = TORCH_DEVICE.fullmatch(device.torch_device)
    if match is None:
        raise ConfigError(f"{key}.torch_device is {device.torch_device!r}: give cpu or cuda:<index>.")
    if match[1] is None:
        kind, total = "cpu", int(psutil.virtual_memory().total)
    else:
        gpu = visible_gpu(int(match[1]), f"{key}.torch_device")
        kind, total = gpu.name, gpu.memory_bytes - CONTEXT_BYTES
    everything = str(device.capacity).strip().lower() == "all"
    capacity = total if everything else parse_bytes(device.capacity, f"{key}.capacity")
    return Device(device.name, kind, capacity, device.torch_device)


LARGEST_BYTES = 2**60  # sums of capacities fit a 64-bit integer


def given_count(value: object, key: str = "cluster.devices") -> int:
    whole = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if isinstance(value, float) and value.is_integer():
        whole = int(value)
    if whole < 1:
        several = ", or a list of them" if key == "cluster.devices" else ""
        raise ConfigError(f"{key} is {value!r}: give a whole number of at least 1{several}.")
    return whole


def given_number(value: object, key: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0:
        raise ConfigError(f"{key} is {value!r}: give a number of 0 or more.")
    return number


def given_speed(value: object, key: str) -> float:
    number = given_number(value, key)
    if number == 0:
        raise ConfigError(f"{key} is {value!r}: give more than 0; 1 is as fast as measured.")
    return number


def given_rate(value: object, key: str) -> float:
    """Bytes per second from a number or a text such as ``"12GB"`` or ``"12 GB/s"``."""
    rate = _size(str(value).strip().removesuffix("/s"), key, "bytes per second, such as 1e9 or 12GB")
    if rate <= 0:
        raise ConfigError(f"{key} is {value!r}: give more than 0 bytes per second.")
    return rate


def given_capacity(value: object, key: str) -> int | float:
    """Bytes as an int, a fraction as a float."""
    accepted = "bytes, a size such as 16GB, or a fraction of what the graph needs such as 40%"
    text = str(value).strip()
    if text.endswith("%"):
        try:
            fraction = float(text[:-1]) / 100
        except ValueError:
            fraction = math.nan
        if not 0 < fraction < math.inf:
            raise ConfigError(f"{key} is {value!r}: give {accepted}.")
        return fraction
    nbytes = parse_bytes(text, key, accepted)
    if nbytes > LARGEST_BYTES:
        raise ConfigError(f"{key} is {value!r}: give at most {LARGEST_BYTES} bytes.")
    return nbytes


def _size(text: str, key: str, accepted: str) -> float:
    match = SIZE.fullmatch(text)
    factor = UNITS.get(match[2].lower()) if match is not None else None
    number = math.nan if match is None or factor is None else float(match[1]) * factor
    if not math.isfinite(number):
        raise ConfigError(f"{key} is {text!r}: give {accepted}.")
    return number


def _promised_links(devices: tuple[Device, ...]) -> dict[tuple[str, str], Link]:
    if sum(device.torch_device.startswith("cuda") for device in devices) < 2:
        return {}
    try:
        links = found_gpus().links
    except NetSplitError as error:
        log.warning("The driver does not say how the GPUs are linked: %s", error)
        return {}
    ways = {(f"cuda:{p}", f"cuda:{q}"): link for (p, q), link in links.items()}
    return ways | {(q, p): link for (p, q), link in ways.items()}


def usable_processors() -> float:
    """Processors that this process and its children may use; a container's quota may be fractional."""
    return shared_processors([(allowed_processors(), processor_quota())])


def shared_processors(of_processes: Iterable[tuple[frozenset[int], float]]) -> float:
    """Processors that several processes of one host share, by affinity and quota."""
    allowed, quotas = zip(*of_processes, strict=True)
    return float(min(len(frozenset[int]().union(*allowed)), max(quotas)))


def allowed_processors() -> frozenset[int]:
    """Numbers of the processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def processor_quota(root: Path = _ROOT) -> float:
    """Processor seconds per second that this process's groups get; infinite without a limit."""
    groups = _text(root / "proc/self/cgroup")
    least = math.inf
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        second = not controllers  # version 2 of cgroups has one tree, version 1 one for each controller
        if not second and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("" if second else "cpu")
        group = top / path.lstrip("/")
        # Parent groups limit it, too; inside a container its own may be the top.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            least = min(least, _quota(folder))
    return least


def _quota(group: Path) -> float:
    words = _text(group / "cpu.max").split() or [
        _text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
    ]
    try:
        quota, period = map(float, words)
    except ValueError:  # "max", or no such file
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
