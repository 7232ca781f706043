"""`local_cluster`: what a config says, checked against the machine."""

import socket
from typing import Any

import psutil
import pytest

from netsplit.cluster.cluster import Device
from netsplit.cluster.local import LocalDevice, local_cluster, parse_bytes, usable_processors
from netsplit.errors import ConfigError
from tests.cluster.test_nvml import Card, FakeNvml

TWO = [LocalDevice("cpu:0", capacity="24MiB"), LocalDevice("cpu:1", capacity=1000)]


def test_devices_keep_their_order_and_their_capacity() -> None:
    spec = local_cluster("two", TWO, timeout_s=5)
    here, processors = socket.gethostname(), usable_processors()
    assert spec.devices == (
        Device("cpu:0", "cpu", 24 * 2**20, host=here, processors=processors),
        Device("cpu:1", "cpu", 1000, host=here, processors=processors),
    )
    assert (spec.timeout_s, spec.port, spec.host) == (5, 0, "127.0.0.1")
    assert spec.latency_s is spec.bandwidth is None


def test_all_means_the_machine_s_memory() -> None:
    spec = local_cluster("one", [LocalDevice("cpu:0")])
    assert spec.devices[0].capacity_bytes == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [(7, 7), ("1KB", 1000), ("1KiB", 1024), ("24MiB", 25165824), ("1.5 GB", 1_500_000_000)],
)
def test_sizes_are_read(size: int | str, nbytes: int) -> None:
    assert parse_bytes(size) == nbytes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"devices": []}, r"cluster\.devices is empty"),
        ({"devices": [TWO[0], TWO[0]]}, r"names cpu:0 more than once"),
        ({"devices": [LocalDevice("a", "tpu")]}, r"cluster\.devices\[0\]\.torch_device is 'tpu'"),
        ({"latency_s": 1.0}, "belong together"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        local_cluster(**{"name": "c", "devices": TWO, **arguments})


CARDS = [Card("GPU zero", "a", 2**30 + 100), Card("GPU one", "b", 2**30 + 101)]


def test_a_gpu_device_has_the_gpu_s_memory_less_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, CARDS)
    spec = local_cluster("gpus", [LocalDevice("g", "cuda:1")])
    here = socket.gethostname()
    assert spec.devices == (Device("g", "GPU one", 101, "cuda:1", host=here, processors=usable_processors()),)


def test_a_gpu_that_is_not_there_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, CARDS)
    with pytest.raises(ConfigError, match=r"devices\[1\]\.torch_device is cuda:2, but there is no such GPU"):
        local_cluster("gpus", [LocalDevice("c"), LocalDevice("g", "cuda:2")])
