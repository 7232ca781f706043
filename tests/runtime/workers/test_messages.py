"""Messages between controller and workers keep tensors as they are."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.runtime.transport.process import _as_sent
from netsplit.runtime.workers.messages import CallWorkers, packed
from tests.cover import covering

DTYPES = (
    torch.bool, torch.uint8, torch.int16, torch.uint16, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
)  # fmt: skip


def sample(dtype: torch.dtype, *shape: int) -> Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.arange(count, dtype=torch.uint8).remainder(2 if dtype is torch.bool else 60)
    return raw.view(dtype).reshape(shape)


@covering(dtype=DTYPES, shape=[(), (3,), (2, 0), (2, 3, 1)])
def test_a_tensor_of_any_dtype_arrives(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = sample(dtype, *shape)
    call: Any = pickle.loads(packed(CallWorkers(len, ([{"x": sent}],))))
    arrived = call.args[0][0]["x"]
    assert (arrived.dtype, arrived.shape) == (sent.dtype, sent.shape)
    assert torch.equal(_as_sent(arrived), _as_sent(sent))
    arrived.zero_()  # it may be written


def test_parts_and_views_parameters_and_conjugates_arrive() -> None:
    whole = torch.randn(4, 6, dtype=torch.complex128)
    parameter = nn.Parameter(torch.randn(3))
    sent = [whole[1], whole[:, 2], whole.t(), whole.conj(), whole.real, whole.conj().imag, parameter]
    arrived = pickle.loads(packed(sent))
    for one, other in zip(sent, arrived, strict=True):
        assert torch.equal(one, other)
    assert isinstance(arrived[-1], nn.Parameter)
    assert len(packed(torch.zeros(1000)[:1].clone())) < 1000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: tensors that lie there")
def test_tensors_of_a_gpu_arrive_in_the_hosts_memory() -> None:
    arrived = pickle.loads(
        packed({"x": torch.arange(3.0, device="cuda"), "p": nn.Parameter(torch.ones(2).cuda())})
    )
    assert [each.device.type for each in arrived.values()] == ["cpu", "cpu"]
    assert arrived["x"].tolist() == [0.0, 1.0, 2.0]
    assert arrived["p"].requires_grad
