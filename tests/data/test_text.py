"""Characters: every one of them once, the right target, and masks as BERT has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.data import IGNORED, text
from netsplit.data.sets.text import UNKNOWN, VOCABULARY
from tests.data.folders import make_text


def text_of(tokens: torch.Tensor) -> str:
    return "".join(VOCABULARY[token] for token in tokens.tolist())


def test_the_standard_library_is_there_and_large_enough() -> None:
    data = text()
    assert data.num_classes == len(data.classes) == len(VOCABULARY) == 99
    assert len(data.train) > 10_000
    assert 0.02 < len(data.test) / len(data.train) < 0.4
    inputs, targets = data.train[0]
    assert inputs.shape == targets.shape == (128,)
    assert "import " in "".join(text_of(data.train[index][0]) for index in range(200))


def test_the_target_is_the_next_character_and_windows_hang_together(tmp_path: Path) -> None:
    data = text(8, root=str(make_text(tmp_path)))
    for half in (data.train, data.test):
        whole, expected = "", torch.tensor(UNKNOWN)
        for index in range(len(half)):
            inputs, targets = half[index]
            assert torch.equal(inputs[1:], targets[:-1])
            assert inputs[0] == expected or index == 0
            expected = targets[-1]
            whole += text_of(inputs)
        assert "\treturn x + " in whole
        assert "<unknown>" in whole


def test_no_file_is_in_both_halves_and_the_seed_draws_them(tmp_path: Path) -> None:
    root = str(make_text(tmp_path, files=10))
    splits = []
    for seed in (0, 0, 1, 2):
        data = text(4, root=root, seed=seed)
        texts = [
            {number for number in range(10) if f"def f{number}(" in whole}
            for half in (data.train, data.test)
            for whole in ("".join(text_of(half[i][0]) for i in range(len(half))),)
        ]
        assert texts[0].isdisjoint(texts[1])
        assert (len(texts[0]), len(texts[1])) == (9, 1)
        splits.append(texts)
    assert splits[0] == splits[1]
    assert splits[0] != splits[2] or splits[0] != splits[3]


@settings(deadline=None)
@given(context=st.integers(1, 60), seed=st.integers(0, 5))
def test_masked_targets_are_what_the_input_hides(
    tmp_path_factory: pytest.TempPathFactory, context: int, seed: int
) -> None:
    root = str(make_text(tmp_path_factory.getbasetemp() / "masked", files=4))
    plain, masked = text(context, root=root, seed=seed), text(context, masked=True, root=root, seed=seed)
    for index in range(min(4, len(plain.train))):
        original, (inputs, targets) = plain.train[index][0], masked.train[index]
        chosen = targets != IGNORED
        assert int(chosen.sum()) == max(1, round(0.15 * context))
        assert torch.equal(targets[chosen], original[chosen])
        assert torch.equal(inputs[~chosen], original[~chosen])
