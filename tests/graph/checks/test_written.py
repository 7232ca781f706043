"""Writes that torch counts, and those that only the contents show."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from netsplit.graph.checks import written
from netsplit.graph.checks.written import Written

DTYPES = (torch.float64, torch.bfloat16, torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_write_through_data_shows_in_every_type(dtype: torch.dtype) -> None:
    tensor = torch.zeros(4, 2).to(dtype)
    before = Written([tensor])
    assert before.is_same()
    tensor.data.fill_(1)
    assert not before.is_same()
    assert before.has(tensor)


@pytest.mark.parametrize(
    "tensor",
    [torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.randn(6, 4).t(), torch.tensor(2.0)],
)
def test_a_write_shows_in_every_layout(tensor: Tensor) -> None:
    before = Written([tensor])
    tensor.data[(-1,) * tensor.dim()] = 7.0
    assert not before.is_same()


def test_what_has_no_contents_is_counted_only() -> None:
    tensors = [torch.empty(3, device="meta"), torch.eye(3).to_sparse(), torch.empty(0)]
    assert Written(tensors).is_same()
    with torch.inference_mode():
        tensors.append(torch.ones(2))
    assert Written(tensors).is_same()


def test_large_tensors_are_compared_in_turns_and_each_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "LOOK_BYTES", 64)
    tensors = [torch.zeros(50), torch.zeros(3), torch.zeros(0), torch.zeros(40)]
    for tensor in tensors:
        for at in range(tensor.numel()):
            before = Written(tensors)
            tensor.data[at] += 1.0
            assert not all(before.is_same() for _ in range(8))  # 8 pieces of 16 numbers at most
            assert [each is tensor for each in tensors] == [before.has(each) for each in tensors]


def test_what_moves_but_stays_the_same_has_not_been_written() -> None:
    tensor = torch.ones(3)
    before = Written([tensor])
    tensor.data = torch.ones(3)
    assert not before.has(tensor)
    tensor.data = torch.zeros(3)
    assert before.has(tensor)


def test_a_later_moment_reads_anew_what_was_seen_written_and_that_only() -> None:
    tensors = [torch.ones(3), torch.ones(3), torch.ones(3)]
    before = Written(tensors)
    tensors[0].add_(1.0)
    tensors[1].data.add_(1.0)
    assert not before.is_same()
    tensors[2].data.add_(1.0)  # nobody has looked at it since
    after = Written(tensors, before)
    assert not after.is_same()
    assert [after.has(tensor) for tensor in tensors] == [False, False, True]
