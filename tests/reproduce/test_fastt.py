"""OS-DPOS against data parallelism: what the tables say, of small models on a few described devices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from netsplit.data.sets.synthetic import synthetic
from netsplit.errors import ConfigError
from reproduce import ByName, ModelCase, V100Servers, largest_batches, split_speeds


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


def test_batches_grow_until_the_bytes_are_gone() -> None:
    """2^27 activations of four bytes a sample, and as many again: some samples fit, more do not."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.flatten(1).sum(1, keepdim=True).expand(-1, 2**27) * self.weight
            return torch.tanh(wide).sum(1, keepdim=True).expand(-1, 10)

    data = synthetic(shape=(3, 8, 8), num_classes=10)
    result = largest_batches(
        ByName(wide=ModelCase(Wide, data, 8)), devices=(1, 2), batches=(2, 4, 8, 16, 32, 64), time_limit_s=5.0
    )
    one, two = result.column("data parallel")
    assert isinstance(one, int)
    assert 2 <= one < 64
    assert two == 2 * one


def test_servers_are_whole_and_joined_by_slower_links() -> None:
    assert V100Servers(a_server=2).of(4).links["d0", "d2"] != V100Servers(a_server=2).of(4).links["d0", "d1"]
    with pytest.raises(ConfigError, match="5 devices are no whole number of servers of 2"):
        V100Servers(a_server=2).of(5)
    with pytest.raises(ConfigError, match=r"study\.scalings has linear"):
        split_speeds(cases(), scalings=("linear",))  # type: ignore[arg-type]
