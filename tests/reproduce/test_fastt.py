"""OS-DPOS against data parallelism: what the tables say, of small models on a few described devices."""

from __future__ import annotations

import pytest
from torch import nn

from netsplit.data.sets.synthetic import synthetic
from netsplit.errors import ConfigError
from reproduce import ByName, ModelCase, V100Servers, split_speeds


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 512), nn.ReLU(inplace=True), nn.Linear(512, 10))


def cases() -> ByName[ModelCase]:
    return ByName(mlp=ModelCase(mlp, synthetic(shape=(3, 8, 8), num_classes=10), batch_size=64))


def test_speeds_are_samples_over_seconds_and_the_gain_is_between_them() -> None:
    result = split_speeds(cases(), devices=(2,), time_limit_s=20.0)
    assert result.column("scaling") == ["strong", "weak"]
    assert result.column("batch") == [64, 128]
    ddp, ours, gain = (
        result.column(name) for name in ("data parallel (samples/s)", "os_dpos (samples/s)", "gain (%)")
    )
    for one, other, difference in zip(ddp, ours, gain, strict=True):
        assert isinstance(one, float)
        assert isinstance(other, float)
        assert difference == pytest.approx(other / one - 1)
    assert result.metrics["ddp.mlp.strong.2"] == ddp[0]


def test_servers_are_whole_and_joined_by_slower_links() -> None:
    assert V100Servers(a_server=2).of(4).links["d0", "d2"] != V100Servers(a_server=2).of(4).links["d0", "d1"]
    with pytest.raises(ConfigError, match="5 devices do not fill servers of 2"):
        V100Servers(a_server=2).of(5)
    with pytest.raises(ConfigError, match=r"study\.scalings has linear"):
        split_speeds(cases(), scalings=("linear",))  # type: ignore[arg-type]
