"""What counts as a difference, and what as rounding."""

from __future__ import annotations

import pytest
import torch

from netsplit.graph.checks.difference import difference, largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_the_largest_element_is_none(dtype: torch.dtype) -> None:
    one = torch.tensor([1.0, 1e-9], dtype=dtype)
    near = one + torch.tensor([0.0, 10 * torch.finfo(dtype).eps], dtype=dtype)
    assert difference(one, near) is None
    assert difference(one, one * (1 + 1e4 * torch.finfo(dtype).eps)) is not None


def test_what_cancels_is_noise_of_what_it_was_computed_with() -> None:
    noise, other = torch.tensor([4.8e-18], dtype=torch.float64), torch.tensor([2.2e-18], dtype=torch.float64)
    assert difference(noise, other) is not None
    assert difference(noise, other, beside=0.1) is None
    assert difference(1e6 * noise, 1e6 * other, beside=0.1) is not None


def test_the_largest_is_finite_and_of_any_layout() -> None:
    sparse = torch.tensor([[0.0, -3.0]]).to_sparse()
    assert largest([None, torch.zeros(0), torch.tensor([1.0, torch.inf, torch.nan]), sparse]) == 3.0
    assert largest([]) == 0.0
