"""A saved dataset of Hugging Face's library, made here in small and read by the library itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from netsplit.data import IGNORED, Data, batches, hugging_face
from netsplit.errors import ConfigError
from tests.messages import tells

datasets: Any = pytest.importorskip("datasets")
TEXTS = ["a b c", "b", "c a b a c b a", "a a"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "tiny"
    pictures = [Image.fromarray(np.full((5, 7, 3), 60 * i, dtype=np.uint8)) for i in range(4)]
    columns = {
        "text": TEXTS, "picture": pictures, "label": [0, 1, 1, 0],
        "numbers": [[1.0, float(i)] for i in range(4)], "height": [0.5, 1.5, 2.5, 3.5],
    }  # fmt: skip
    features = datasets.Features({
        "text": datasets.Value("string"), "picture": datasets.Image(),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "numbers": datasets.List(datasets.Value("float32")), "height": datasets.Value("float32"),
    })  # fmt: skip
    whole = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict({"train": whole, "test": whole.select([2, 0])}).save_to_disk(str(folder))
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1, "b": 2, "c": 3}, unk_token="?"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = tmp_path_factory.mktemp("tokenizer")
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?").save_pretrained(str(folder))
    return folder


def first(data: Data) -> tuple[Any, Any]:
    return next(batches(data.train, 4, shuffle=False))


def test_pictures_and_labels_are_a_classification(saved: Path) -> None:
    data = hugging_face(str(saved), "picture", "label", image_size=8)
    assert (data.name, len(data.train), len(data.test), data.num_classes) == ("tiny", 4, 2, 2)
    assert list(data.classes) == ["no", "yes"]
    images, targets = first(data)
    assert (images.shape, images.dtype, targets.tolist()) == ((4, 3, 8, 8), torch.float32, [0, 1, 1, 0])
    torch.testing.assert_close(images[1] - images[0], images[2] - images[1])


def test_columns_of_numbers_come_as_they_are_and_several_by_name(saved: Path) -> None:
    inputs, targets = first(hugging_face(str(saved), ["numbers", "label"], "height", test=None))
    assert set(inputs) == {"numbers", "label"}
    assert inputs["numbers"].tolist() == [[1.0, i] for i in range(4)]
    assert (targets.dtype, targets.tolist()) == (torch.float32, [0.5, 1.5, 2.5, 3.5])


def test_text_is_tokens_and_without_a_target_the_next_ones(saved: Path, tokenizer: Path) -> None:
    data = hugging_face(str(saved), "text", tokenizer=str(tokenizer), length=4)
    assert (data.num_classes, data.metric) == (4, "perplexity")
    tokens, targets = first(data)
    assert tokens.tolist() == [[1, 2, 3, 0], [2, 0, 0, 0], [3, 1, 2, 1], [1, 1, 0, 0]]
    no = IGNORED
    assert targets.tolist() == [[2, 3, no, no], [no] * 4, [1, 2, 1, 3], [1, no, no, no]]
    tokens, targets = first(hugging_face(str(saved), "text", "label", tokenizer=str(tokenizer), length=2))
    assert (tokens[2].tolist(), targets.tolist()) == ([3, 1], [0, 1, 1, 0])


@pytest.mark.parametrize(
    ("keys", "facts"),
    [
        ({"inputs": "pictures", "target": "label"}, ["no column 'pictures'", "text, picture, label"]),
        ({"inputs": "text", "target": "label"}, ["dataset.tokenizer must be given"]),
        ({"inputs": "picture", "target": "label", "test": "dev"}, ["no split 'dev'", "train, test"]),
    ],
)
def test_what_is_not_there_is_named(saved: Path, keys: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(ConfigError) as told:
        hugging_face(str(saved), **keys)
    assert tells(told.value, *facts)
