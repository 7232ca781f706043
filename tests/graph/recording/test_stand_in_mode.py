"""Shapes that are known at once are those that the operators give."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from netsplit.graph.recording.stand_ins import StandInMode

LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x,
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
}


@settings(deadline=None, max_examples=60)
@given(
    shape=st.lists(st.integers(2, 4), min_size=2, max_size=5),
    layout=st.sampled_from(sorted(LAYOUTS)),
    dtypes=st.sampled_from(
        [(torch.float32,) * 2, (torch.float64,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)]
    ),
    affine=st.booleans(),
    training=st.booleans(),
)
def test_of_a_batch_normalisation(
    shape: list[int], layout: str, dtypes: tuple[torch.dtype, torch.dtype], affine: bool, training: bool
) -> None:
    x = LAYOUTS[layout](torch.randn(shape, dtype=dtypes[0]))
    per_channel = torch.ones(shape[1], dtype=dtypes[1])
    weight = per_channel if affine else None
    given = (x, weight, weight, per_channel.clone(), per_channel.clone(), training, 0.1, 1e-5)
    norm = torch.ops.aten._native_batch_norm_legit.default
    real = norm(*given)
    with StandInMode() as mode:
        fake = norm(*(mode.from_tensor(each) if isinstance(each, Tensor) else each for each in given))
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
