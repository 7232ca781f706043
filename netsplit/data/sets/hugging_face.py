"""Hugging Face's `datasets`, from a folder that `save_to_disk` wrote: columns as inputs and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import IGNORED, Data, Drawn, MetricName, limited
from netsplit.data.keys import at_least, root_folder
from netsplit.data.sets.images import IMAGENET_MEAN, IMAGENET_STD, to_tensor
from netsplit.errors import ConfigError

__all__ = ["hugging_face"]

LAYOUT = "a dataset that save_to_disk wrote"


def hugging_face(
    root: str,
    inputs: str | Sequence[str],
    target: str | None = None,
    train: str = "train",
    test: str | None = "test",
    tokenizer: str | None = None,
    length: int = 128,
    image_size: int = 224,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Samples of a saved dataset, whose arrow files are memory-mapped.

    A text column becomes int64 tokens (length,), cut or padded; a picture column normalised float32 images
    (3, image_size, image_size); a column of numbers tensors of one shape.

    Args:
        inputs: a column, or several, which the model gets as a mapping by name.
        target: a column; None: the next token at each place of the text, `IGNORED` in the padding.
        train, test: the splits of a DatasetDict; a single Dataset is all training.
        tokenizer: a folder that `transformers.AutoTokenizer` reads; needed for text.
        limit: the most samples of each half, drawn by `seed`.

    Raises:
        ConfigError: `datasets` is not installed, or the dataset, a split or a column is missing.
    """
    at_least(1, length=length, image_size=image_size)
    splits = _splits(root_folder(root, LAYOUT), train, test)
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    features = splits[0].features
    for name in (*names, *([target] if target is not None else [])):
        if name not in features:
            raise ConfigError(f"{root} has no column '{name}': give one of {', '.join(features)}.")
    texts = [name for name in names if getattr(features[name], "dtype", None) in ("string", "large_string")]
    if target is None and (len(names) != 1 or not texts):
        raise ConfigError("dataset.target is null, which only text allows: name the column of the targets.")
    read = _RowTensors(names, target, _tokenizer(tokenizer) if texts else None, length, image_size)
    halves = [Drawn(each.select(limited(len(each), limit, seed)), read) for each in splits]
    classes = tuple(getattr(features.get(target), "names", None) or ())
    count = len(classes) if target is not None else len(read.tokenizer)
    test_half = halves[1] if len(halves) > 1 else ()
    metric: MetricName = "perplexity" if target is None else "accuracy"
    return Data(Path(root).resolve().name, halves[0], test_half, count, classes, metric=metric)


@dataclass(frozen=True)
class _RowTensors:
    """Make a row of columns an input and a target."""

    inputs: list[str]
    target: str | None
    tokenizer: Any
    length: int
    image_size: int

    def __call__(self, row: dict[str, Any], _: np.random.Generator) -> tuple[Any, Tensor]:
        if self.target is None:
            tokens, count = self._tokens(row[self.inputs[0]], self.length + 1)
            targets = tokens[1:].clone()
            targets[max(count - 1, 0) :] = IGNORED
            return tokens[:-1], targets
        values = {name: self._tensor(name, row[name]) for name in self.inputs}
        inputs = values[self.inputs[0]] if len(values) == 1 else values
        return inputs, self._tensor(self.target, row[self.target])

    def _tokens(self, text: str, length: int) -> tuple[Tensor, int]:
        """Tokens (length,), cut or padded, and how many are no padding."""
        tokens = self.tokenizer(text, truncation=True, max_length=length)["input_ids"]
        filling = self.tokenizer.pad_token_id or 0
        return torch.tensor(tokens + [filling] * (length - len(tokens))), len(tokens)

    def _tensor(self, name: str, value: Any) -> Tensor:
        """Raises ConfigError: the column has another kind of value."""
        if isinstance(value, str) and self.tokenizer is not None:
            return self._tokens(value, self.length)[0]
        if hasattr(value, "convert"):
            side = (self.image_size, self.image_size)
            return to_tensor(IMAGENET_MEAN, IMAGENET_STD)(value.convert("RGB").resize(side))
        try:
            tensor = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"column '{name}' holds {type(value).__name__}, which cannot become a tensor: name another "
                "column."
            ) from error
        return tensor.float() if tensor.dtype == torch.float64 else tensor


def _splits(folder: Path, train: str, test: str | None) -> list[Any]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "dataset=huggingface needs the package 'datasets': `pip install 'netsplit[huggingface]'`."
        ) from error
    try:
        saved = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"dataset.root is {folder}, which does not hold {LAYOUT}: save one there."
        ) from error
    if isinstance(saved, datasets.Dataset):
        return [saved]
    wanted = [train, *([test] if test is not None else [])]
    for split in wanted:
        if split not in saved:
            raise ConfigError(f"{folder} has no split '{split}': give one of {', '.join(saved)}.")
    return [saved[split] for split in wanted]


def _tokenizer(folder: str | None) -> Any:
    if folder is None:
        raise ConfigError("dataset.tokenizer must be given for text: a folder that AutoTokenizer reads.")
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120].rstrip(".")
        raise ConfigError(f"dataset.tokenizer is {folder}, which cannot be read: {reason}.") from error
