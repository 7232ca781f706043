"""The GPUs that the driver lists: from a driver that is made up, and from a real one."""

from dataclasses import dataclass, field
from typing import Any

import pynvml
import pytest

from netsplit.cluster.local import BETWEEN_PROCESSES, gpu_cluster
from netsplit.cluster.nvml import NVLINK_BYTES_S, NVLINK_EFFICIENCY, found_gpus
from netsplit.errors import ConfigError

GIB = 2**30


@dataclass
class Card:
    """One GPU of a made-up machine."""

    name: str
    bus: str
    memory: int = 24 * GIB
    links: dict[int, str] = field(default_factory=dict)  # NVLink -> bus of its other end
    nvlink: int = 3
    pcie: tuple[int, int] = (3, 16)


class FakeNvml:
    """A driver that knows `cards`; `way` is NVML's level of the nearest common ancestor of a pair."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cards: list[Card],
        way: dict[tuple[int, int], int] | None = None,
    ) -> None:
        self.cards, self.way = cards, way or {}
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: len(cards),
            "nvmlDeviceGetHandleByIndex": self.by_index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: self.by_index(int(uuid[-1])),
            "nvmlDeviceGetName": lambda i: cards[i].name,
            "nvmlDeviceGetMemoryInfo": lambda i: type("Memory", (), {"total": cards[i].memory}),
            "nvmlDeviceGetTopologyCommonAncestor": lambda i, j: self.way.get((i, j), 40),
            "nvmlDeviceGetP2PStatus": self.p2p,
            "nvmlDeviceGetPciInfo": lambda i: type("Pci", (), {"busId": cards[i].bus}),
            "nvmlDeviceGetNvLinkState": lambda i, link: int(link in cards[i].links),
            "nvmlDeviceGetNvLinkVersion": lambda i, link: cards[i].nvlink,
            "nvmlDeviceGetNvLinkRemotePciInfo": self.remote,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda i: cards[i].pcie[0],
            "nvmlDeviceGetMaxPcieLinkWidth": lambda i: cards[i].pcie[1],
        }.items():
            monkeypatch.setattr(pynvml, name, value)

    def by_index(self, index: int) -> int:
        if index >= len(self.cards):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return index

    def p2p(self, i: int, j: int, index: int) -> int:
        assert index == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        joined = self.cards[i].links and self.cards[j].links
        return pynvml.NVML_P2P_STATUS_OK if joined else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED

    def remote(self, i: int, link: int) -> Any:
        return type("Pci", (), {"busId": self.cards[i].links[link].encode()})


TITANS = [Card("TITAN RTX", f"0000:{i}A:00.0") for i in range(3)]


def test_gpus_are_found_with_names_memory_and_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, TITANS, {(0, 1): 40, (0, 2): 50, (1, 2): 10})
    gpus = found_gpus()
    assert [(gpu.device, gpu.name, gpu.memory_bytes) for gpu in gpus.gpus] == [
        (f"cuda:{i}", "TITAN RTX", 24 * GIB) for i in range(3)
    ]
    assert gpus.ways == {(0, 1): "NODE", (0, 2): "SYS", (1, 2): "PIX"}
    rates = [gpus.links[pair].bandwidth for pair in ((1, 2), (0, 1), (0, 2))]
    assert rates == sorted(rates, reverse=True)
    assert 10e9 < rates[0] < 15.75e9  # PCIe 3.0 x16 carries no more
    assert gpus.links[1, 2].latency_s < gpus.links[0, 2].latency_s


def test_nvlinks_count_where_they_lead_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three links join the pair; the third leads elsewhere."""
    cards = [Card("V", "a", links={0: "b", 1: "b", 2: "c"}, nvlink=2), Card("V", "b", links={0: "a", 1: "a"})]
    FakeNvml(monkeypatch, cards)
    gpus = found_gpus()
    assert gpus.ways[0, 1] == "NV2"
    assert gpus.links[0, 1].bandwidth == pytest.approx(2 * NVLINK_EFFICIENCY * NVLINK_BYTES_S[2])


@pytest.mark.parametrize(("visible", "names"), [("1,0", "ba"), ("GPU-2", "c")])
def test_visible_gpus_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, visible: str, names: str) -> None:
    FakeNvml(monkeypatch, [Card(name, name) for name in "abc"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert "".join(gpu.name for gpu in found_gpus().gpus) == names


def test_a_cluster_of_all_gpus_has_one_device_each(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, TITANS)
    spec = gpu_cluster("gpus", capacity="20GiB", cpus=1)
    assert [d.name for d in spec.devices] == ["cuda:0", "cuda:1", "cuda:2", "cpu:0"]
    assert [d.torch_device for d in spec.devices] == ["cuda:0", "cuda:1", "cuda:2", "cpu"]
    assert [d.kind for d in spec.devices] == ["TITAN RTX"] * 3 + ["cpu"]
    assert spec.devices[2].capacity_bytes == 20 * GIB
    assert spec.bandwidth is None  # links are probed


def test_gpus_that_nobody_probes_are_linked_as_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, TITANS[:2])
    cluster = gpu_cluster("gpus", cpus=1).unprobed
    assert cluster.links["cuda:0", "cuda:1"] == cluster.links["cuda:1", "cuda:0"] == found_gpus().links[0, 1]
    assert cluster.links["cuda:0", "cpu:0"] == BETWEEN_PROCESSES


def test_no_gpu_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, [])
    with pytest.raises(ConfigError, match=r"^cluster asks for all GPUs, but none is visible here: choose"):
        gpu_cluster("gpus")

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    with pytest.raises(ConfigError, match="the driver finds none"):
        gpu_cluster("gpus")


def test_a_real_driver_answers() -> None:
    try:
        gpus = found_gpus()
    except ConfigError as error:
        pytest.skip(f"no GPU here: {error}")
    assert all(gpu.memory_bytes > 0 and gpu.name for gpu in gpus.gpus)
    assert all(link.bandwidth > 0 for link in gpus.links.values())
