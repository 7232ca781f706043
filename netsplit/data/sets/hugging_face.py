"""Hugging Face's `datasets`, from a folder that `save_to_disk` wrote: columns as inputs and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import IGNORED, Data
from netsplit.data.draw import limited
from netsplit.data.keys import ReadBy, check_common, root_folder
from netsplit.data.pictures import IMAGENET_MEAN, IMAGENET_STD, to_tensor
from netsplit.errors import ConfigError

__all__ = ["hugging_face"]

LAYOUT = "what Dataset.save_to_disk or DatasetDict.save_to_disk wrote"


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
    workers: int = 0,
    prefetch: int = 2,
    read_by: ReadBy = "auto",
    seed: int = 0,
) -> Data:
    """Samples of a saved dataset, whose arrow files are mapped, not read into memory.

    A column of text becomes int64 tokens (length,), cut or filled up; of pictures a normalised float32 image
    (3, image_size, image_size); of numbers a tensor of their shape, which is the same for all.

    Args:
        inputs: a column, or several, which a model gets as a mapping by their names.
        target: a column; null: the next token at each place of the text, `IGNORED` where it is filled up.
        train, test: the splits of a DatasetDict; of a Dataset alone all is training, and test is of no use.
        tokenizer: a folder that `transformers.AutoTokenizer` reads; needed for text.
        limit: at most so many samples of each half, drawn by `seed`.

    Raises:
        ConfigError: `datasets` is not installed, the folder is none of its, or a split or column is missing.
    """
    check_common(limit, workers, prefetch, seed, length=length, image_size=image_size)
    splits = _splits(root_folder(root, LAYOUT), train, test)
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    features = splits[0].features
    for name in (*names, *([target] if target is not None else [])):
        if name not in features:
            raise ConfigError(f"{root} has no column '{name}': give one of {', '.join(features)}.")
    to_tokens = _tokens(tokenizer, length, any(_holds_text(features[name]) for name in names))
    if target is None and (len(names) != 1 or not _holds_text(features[names[0]])):
        raise ConfigError("dataset.target is null, which is for text alone: name the column of the targets.")
    to_tensor = _ToTensor(to_tokens, image_size)
    halves = [_Columns(each, limited(len(each), limit, seed), names, target, to_tensor) for each in splits]
    label = features[target] if target is not None else None
    classes = tuple(getattr(label, "names", None) or ())
    return Data(
        Path(root).resolve().name, halves[0], halves[1] if len(halves) > 1 else (),
        len(classes) or (to_tokens.size if target is None and to_tokens is not None else 0), classes,
        workers=workers, prefetch=prefetch, metric="perplexity" if target is None else "accuracy",
        read_by=read_by,
    )  # fmt: skip


@dataclass(frozen=True)
class _Columns:
    rows: Any  # datasets.Dataset
    chosen: np.ndarray
    inputs: list[str]
    target: str | None
    to_tensor: _ToTensor

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int, /) -> tuple[Any, Tensor]:
        row = self.rows[int(self.chosen[index])]
        if self.target is None:
            return self.to_tensor.next_tokens(row[self.inputs[0]])
        values = {name: self.to_tensor(name, row[name]) for name in self.inputs}
        given = values[self.inputs[0]] if len(values) == 1 else values
        return given, self.to_tensor(self.target, row[self.target])


@dataclass(frozen=True)
class _Tokenized:
    tokenizer: Any
    length: int

    @property
    def size(self) -> int:
        return len(self.tokenizer)

    def __call__(self, text: str, length: int) -> tuple[Tensor, int]:
        """Tokens (length,), cut or filled up, and how many are not filling."""
        tokens = self.tokenizer(text, truncation=True, max_length=length)["input_ids"]
        filling = self.tokenizer.pad_token_id or 0
        return torch.tensor(tokens + [filling] * (length - len(tokens))), len(tokens)


@dataclass(frozen=True)
class _ToTensor:
    to_tokens: _Tokenized | None
    image_size: int

    def __call__(self, name: str, value: Any) -> Tensor:
        """Raises ConfigError, where the column is of a kind that is none of these."""
        if isinstance(value, str) and self.to_tokens is not None:
            return self.to_tokens(value, self.to_tokens.length)[0]
        if hasattr(value, "convert"):
            side = (self.image_size, self.image_size)
            return to_tensor(IMAGENET_MEAN, IMAGENET_STD)(value.convert("RGB").resize(side))
        try:
            tensor = torch.as_tensor(np.asarray(value))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"column '{name}' holds {type(value).__name__}, which makes no tensor: name another."
            ) from error
        return tensor.float() if tensor.dtype == torch.float64 else tensor

    def next_tokens(self, text: str) -> tuple[Tensor, Tensor]:
        """Tokens, and the next one at each place."""
        assert self.to_tokens is not None
        tokens, count = self.to_tokens(text, self.to_tokens.length + 1)
        targets = tokens[1:].clone()
        targets[max(count - 1, 0) :] = IGNORED
        return tokens[:-1], targets


def _splits(folder: Path, train: str, test: str | None) -> list[Any]:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            "dataset=hugging_face needs the package 'datasets': `pip install 'netsplit[huggingface]'`."
        ) from error
    try:
        saved = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(
            f"dataset.root is {folder}, which does not hold {LAYOUT}: save it there."
        ) from error
    if isinstance(saved, datasets.Dataset):
        return [saved]
    for split in (train, *([test] if test is not None else [])):
        if split not in saved:
            raise ConfigError(f"{folder} has no split '{split}': give one of {', '.join(saved)}.")
    return [saved[train]] + ([saved[test]] if test is not None else [])


def _tokens(tokenizer: str | None, length: int, needed: bool) -> _Tokenized | None:
    if not needed:
        return None
    if tokenizer is None:
        raise ConfigError("dataset.tokenizer must be given for text: a folder that AutoTokenizer reads.")
    try:
        from transformers import AutoTokenizer

        return _Tokenized(AutoTokenizer.from_pretrained(tokenizer, local_files_only=True), length)
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120].rstrip(".")
        raise ConfigError(f"dataset.tokenizer is {tokenizer}, which cannot be read: {reason}.") from error


def _holds_text(feature: Any) -> bool:
    return getattr(feature, "dtype", None) in ("string", "large_string")
