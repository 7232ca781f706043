"""GPT and BERT: their published sizes by arithmetic, and what a token's score depends on."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from netsplit.models import bert, gpt
from netsplit.models.transformers import TransformerBlock

VOCABULARY, TOKENS = 13, 7


@cache
def tiny(name: str) -> nn.Module:
    torch.manual_seed(2)
    build = gpt if name == "gpt" else bert
    return build(vocabulary=VOCABULARY, context=TOKENS, layers=2, heads=2, width=8).double().eval()


tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=TOKENS, max_size=TOKENS)


@given(before=tokens, place=st.integers(0, TOKENS - 1), shift=st.integers(1, VOCABULARY - 1))
@settings(deadline=None, max_examples=15)
def test_a_token_changes_the_scores_at_its_place_and_after_it_in_gpt_and_all_in_bert(
    before: list[int], place: int, shift: int
) -> None:
    after = list(before)
    after[place] = (after[place] + shift) % VOCABULARY
    batch = torch.tensor([before, after])
    for name, first in (("gpt", place), ("bert", 0)):
        with torch.no_grad():
            one, other = tiny(name)(batch)
        changed = (one != other).any(0)
        assert torch.allclose(one[:, :first], other[:, :first], rtol=0, atol=1e-14)
        assert changed[first:].all(), name


@pytest.mark.parametrize(("norm_first", "causal"), [(True, True), (False, False)])
def test_a_block_computes_what_torchs_own_layer_does(norm_first: bool, causal: bool) -> None:
    torch.manual_seed(0)
    block = TransformerBlock(
        12, 3, causal=causal, norm_first=norm_first, dropout=0.0, gelu="none", eps=1e-5
    ).double()
    layer = nn.TransformerEncoderLayer(
        12, 3, 48, dropout=0.0, activation=F.gelu, batch_first=True, norm_first=norm_first
    ).double()
    pairs = {
        "qkv.weight": "self_attn.in_proj_weight",
        "qkv.bias": "self_attn.in_proj_bias",
        "project.weight": "self_attn.out_proj.weight",
        "project.bias": "self_attn.out_proj.bias",
        **{f"{ours}.{kind}": f"{theirs}.{kind}" for kind in ("weight", "bias") for ours, theirs in
           (("norm1", "norm1"), ("norm2", "norm2"), ("widen", "linear1"), ("narrow", "linear2"))},
    }  # fmt: skip
    block.load_state_dict({ours: layer.state_dict()[theirs] for ours, theirs in pairs.items()})
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64) if causal else None
    torch.testing.assert_close(block(x), layer(x, src_mask=mask, is_causal=causal))
