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
from netsplit.models._transformer import TransformerBlock, attend
from netsplit.models.bert import BERT
from tests.examples import tried
from tests.models.subjects import count

VOCABULARY, TOKENS = 13, 7


def block_count(width: int) -> int:
    """Query, key, value, projection, a network of four times the width, two norms; all with biases."""
    return 4 * (width**2 + width) + 8 * width**2 + 5 * width + 4 * width


def gpt_count(vocabulary: int, context: int, layers: int, width: int, tied: bool = True) -> int:
    embedding = (vocabulary + context) * width
    return embedding + layers * block_count(width) + 2 * width + (0 if tied else vocabulary * width)


def bert_count(vocabulary: int, context: int, layers: int, width: int) -> int:
    """Without any head: embeddings of token, place and segment with their norm, and the blocks."""
    return (vocabulary + context + 2) * width + 2 * width + layers * block_count(width)


@pytest.mark.parametrize(
    ("size", "parameters", "layers", "width"),
    [("small", 124_439_808, 12, 768), ("medium", 354_823_168, 24, 1024), ("large", 774_030_080, 36, 1280)],
)
def test_a_gpt_is_as_large_as_gpt_2(size: str, parameters: int, layers: int, width: int) -> None:
    with torch.device("meta"):
        counted = count(gpt(size))  # type: ignore[arg-type]
    assert counted == parameters == gpt_count(50257, 1024, layers, width)


@pytest.mark.parametrize(
    ("size", "layers", "width", "with_pooler"),
    [("base", 12, 768, 109_482_240), ("large", 24, 1024, 335_141_888)],
)
def test_a_bert_is_as_large_as_published(size: str, layers: int, width: int, with_pooler: int) -> None:
    """The published count is of the encoder and a pooler, which is one dense layer."""
    with torch.device("meta"):
        model = bert(size)  # type: ignore[arg-type]
    assert isinstance(model, BERT)
    dense, norm, bias = width**2 + width, 2 * width, 30522
    assert count(model.encoder) + dense == with_pooler
    assert count(model.encoder) == bert_count(30522, 512, layers, width)
    assert count(model) == count(model.encoder) + dense + norm + bias


@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    each=st.integers(1, 6),
    vocabulary=st.integers(1, 50),
    context=st.integers(1, 20),
    tied=st.booleans(),
)
@settings(deadline=None, max_examples=tried(25))
def test_any_size_has_the_weights_that_arithmetic_gives_it(
    layers: int, heads: int, each: int, vocabulary: int, context: int, tied: bool
) -> None:
    sizes = {"layers": layers, "heads": heads, "width": heads * each, "context": context}
    with torch.device("meta"):
        language = gpt(vocabulary=vocabulary, tied=tied, **sizes)  # type: ignore[arg-type]
        masked = bert(vocabulary=vocabulary, **sizes)  # type: ignore[arg-type]
    assert count(language) == gpt_count(vocabulary, context, layers, heads * each, tied)
    head = (heads * each) ** 2 + 3 * heads * each + vocabulary
    assert count(masked) == bert_count(vocabulary, context, layers, heads * each) + head


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


@given(length=st.integers(1, TOKENS))
@settings(deadline=None, max_examples=7)
def test_a_shorter_text_gets_the_scores_it_has_as_the_beginning_of_a_longer_one(length: int) -> None:
    batch = torch.randint(0, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole, part = tiny("gpt")(batch), tiny("gpt")(batch[:, :length])
    torch.testing.assert_close(part, whole[:, :, :length], rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("causal", [True, False])
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


def test_attention_is_a_mean_of_values_weighed_by_softmax() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 6, dtype=torch.float64) for n in (4, 5, 5))
    attended = attend(query, key, value, 2)
    for h in range(2):
        part = slice(3 * h, 3 * h + 3)
        weights = torch.softmax(query[..., part] @ key[..., part].mT / 3**0.5, dim=2)
        torch.testing.assert_close(attended[..., part], weights @ value[..., part])


def test_unmasked_places_count_for_nothing() -> None:
    """-100 is what CrossEntropyLoss leaves out, so that BERT learns from masked tokens alone."""
    batch = torch.randint(0, VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(4))
    targets = torch.full_like(batch, -100)
    targets[0, 2], targets[1, 5] = 3, 4
    scores = tiny("bert")(batch)
    wanted = -(F.log_softmax(scores[0, :, 2], 0)[3] + F.log_softmax(scores[1, :, 5], 0)[4]) / 2
    torch.testing.assert_close(nn.CrossEntropyLoss()(scores, targets), wanted)


def test_dropout_is_drawn_in_training_and_not_in_evaluation() -> None:
    torch.manual_seed(0)
    model = gpt(vocabulary=VOCABULARY, context=TOKENS, layers=1, heads=1, width=8, dropout=0.5)
    batch = torch.arange(TOKENS)[None]
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))
