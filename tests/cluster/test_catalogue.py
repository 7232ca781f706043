"""Devices described by model: possible figures, capacities, speeds, and one sentence for each mistake."""

from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from benchmarks.predictor.fit import write_rates
from netsplit.cluster.catalogue import CONTEXT_BYTES, RATES, Efficiency, Rates, accelerator
from netsplit.cluster.described import (
    ClusterDescription,
    DescribedDevice,
    LinkCost,
    described_cluster,
    uniform_cluster,
)
from netsplit.config import build
from netsplit.errors import ConfigError
from netsplit.profile.roofline import CLASSES, Pass

CONF = Path(__file__).resolve().parents[2] / "conf" / "cluster"
LINK = LinkCost("10GB", 1e-5)


@pytest.mark.parametrize("name", RATES)
def test_an_efficiency_is_a_fraction_of_a_peak(name: str) -> None:
    rates = RATES[name]
    assert rates.name == name
    for kind in CLASSES:
        for of in ("forward", "input", "weight"):
            reached = rates.efficiency_of(kind, of)
            assert 0.05 <= reached.compute <= 0.95, (kind, of)
            assert 0.05 <= reached.memory <= 0.95, (kind, of)
    known = {"", *CLASSES}
    assert {key.partition(":")[0] for key in rates.efficiency} <= known
    assert 0 < rates.capacity_bytes == rates.memory_bytes - CONTEXT_BYTES


def test_a_model_is_found_as_people_and_drivers_write_it() -> None:
    for name in ("titan rtx", "NVIDIA TITAN RTX", "Titan-RTX"):
        assert accelerator(name).name == "TITAN RTX"
    assert accelerator("Tesla V100-SXM2-16GB").name == "V100-SXM2-16GB"
    assert accelerator("NVIDIA GeForce GTX 1080 Ti").name == "GTX 1080 Ti"
    assert accelerator("NVIDIA H200").name == "H200-SXM"


def test_a_model_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.devices\[1\]\.model is 'Voodoo 2'.*TITAN RTX"):
        described_cluster(
            "x", [DescribedDevice("a", model="TITAN RTX"), DescribedDevice("b", model="Voodoo 2")], LINK
        )


def test_a_device_of_a_model_has_its_kind_and_its_memory() -> None:
    devices = [
        DescribedDevice("a", model="titan rtx"),
        DescribedDevice("b", model="TITAN RTX", speed=0.5, capacity="8GB"),
        DescribedDevice("c", model="GTX 1080 Ti", capacity="50%"),
    ]
    description = described_cluster("x", devices, LINK)
    cluster = description.cluster("accelerator", 1000)
    assert [d.kind for d in cluster.devices] == ["TITAN RTX", "TITAN RTX x0.5", "GTX 1080 Ti"]
    assert [d.capacity_bytes for d in cluster.devices] == [24 * 2**30 - CONTEXT_BYTES, 8_000_000_000, 500]
    fast, slow = description.accelerators["a"], description.accelerators["b"]
    assert (slow.flops, slow.bandwidth) == (fast.flops / 2, fast.bandwidth / 2)
    assert slow.launch_s == 2 * fast.launch_s


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("titan_rtx5", ["TITAN RTX"] * 5),
        ("titan_rtx3", ["TITAN RTX"] * 3),
        ("v100x8", ["V100-SXM2-16GB"] * 8),
        ("summit", ["V100-SXM2-16GB"] * 6),
        ("h200x8", ["H200-SXM"] * 8),
        ("old_new", ["GTX 1080 Ti", "RTX 4090"]),
    ],
)
def test_the_described_clusters_are_built(name: str, kinds: list[str]) -> None:
    cluster = build(OmegaConf.load(CONF / f"{name}.yaml"))  # type: ignore[arg-type]
    assert isinstance(cluster, ClusterDescription)
    assert cluster.name == name
    assert [d.kind for d in cluster.cluster("", 0).devices] == kinds


@pytest.mark.parametrize("name", RATES)
def test_half_precision_is_taken_where_there_are_cores_for_it(name: str) -> None:
    rates = RATES[name]
    assert rates.under(None) is rates
    half = rates.under("float16")
    for kind in ("convolution", "matmul"):
        work = Pass(1e15, 0.0)
        assert half.seconds(kind, "forward", work) <= rates.seconds(kind, "forward", work)
    slow = rates.at(0.5, "slow").under("float16")
    assert slow.seconds("matmul", "forward", Pass(1e15)) == pytest.approx(
        2 * half.seconds("matmul", "forward", Pass(1e15))
    )


def test_fitted_rates_are_a_model_by_their_file(tmp_path: Path) -> None:
    rates = Rates(
        "lab", 5e10, 1e10, 2e-6, {"": Efficiency(0.5, 0.4), "matmul": Efficiency(0.9, 0.8, 2.0, 0.3)}
    )
    file = tmp_path / "lab.json"
    write_rates(rates, file)
    fitted = accelerator(str(file))
    assert {each.name: getattr(fitted, each.name) for each in fields(Rates)} == {
        each.name: getattr(rates, each.name) for each in fields(Rates)
    }
    cluster = uniform_cluster(2, 1e9, "1GiB", model=str(file)).cluster("", 0)
    assert [(device.kind, device.capacity_bytes) for device in cluster.devices] == [("lab", 2**30)] * 2
    with pytest.raises(
        ConfigError, match=r"^cluster.capacity must be given, as '.*lab.json' does not imply it"
    ):
        uniform_cluster(2, 1e9, model=str(file))
    with pytest.raises(ConfigError, match=r"^autocast is float16, which lab does not support: give null"):
        fitted.under("float16")


@pytest.mark.parametrize("text", ["{}", '{"name": "x", "efficiency": {}}'])
def test_a_file_that_holds_no_rates_says_how_to_make_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(
        ConfigError, match=r"^model is '.*x.json', which is not a file of rates: write one with"
    ):
        accelerator(str(tmp_path / "x.json"))
    with pytest.raises(ConfigError, match=r"^model is '.*y.json', which cannot be read: No such file"):
        accelerator(str(tmp_path / "y.json"))
