"""Characters of the Python standard library's sources: real text without a download."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from netsplit.data.dataset import IGNORED, Data, Drawn, limited
from netsplit.data.keys import at_least, root_folder
from netsplit.errors import ConfigError

__all__ = ["MASK", "UNKNOWN", "VOCABULARY", "encoded", "text"]

VOCABULARY = ("<unknown>", "<mask>", "\t", "\n", *map(chr, range(ord(" "), ord("~") + 1)))
"""The same for every text: a model trained on one fits another."""

UNKNOWN, MASK = 0, 1

TEST_FRACTION = 0.1

# Fractions of Devlin et al., BERT, 2019, section 3.1: masked characters are shown as the mask, as any
# character, or unchanged.
MASKED_FRACTION, SHOWN_AS_MASK, SHOWN_AS_OTHER = 0.15, 0.8, 0.1

_LAST = ord("~") + 1
_IDS = np.zeros(_LAST + 1, dtype=np.uint8)  # by code point; the last entry stands for all beyond
_IDS[[ord(character) for character in VOCABULARY[2:]]] = np.arange(2, len(VOCABULARY))


def text(
    context: int = 128,
    masked: bool = False,
    root: str | None = None,
    pattern: str = "*.py",
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """Windows of characters: int64 tokens (context,), with the next character of each as target (context,).

    Files are in the order of their names; a tenth, drawn by `seed`, is the test half. Windows do not overlap.
    The vocabulary is printable ASCII, tab and newline; other characters are unknown.

    Args:
        masked: targets are 15 % of the characters, drawn by `seed`, epoch and index, which the input hides as
            BERT does; other targets are -100.
        root: a folder of other text; None: the standard library of the running Python.
        pattern: which files of the folder.
        limit: the most windows of each half, drawn by `seed`.

    Raises:
        ConfigError: there are too few files or too little text, or a number cannot be used.
    """
    at_least(1, context=context)
    folder = root_folder(sysconfig.get_path("stdlib") if root is None else root, "text files")
    files = _files(folder, pattern)
    drawn = np.random.default_rng(seed).permutation(len(files))
    tests = set(drawn[: max(1, round(TEST_FRACTION * len(files)))].tolist())
    halves = []
    for half in (False, True):
        own = [file for index, file in enumerate(files) if (index in tests) == half]
        halves.append(Drawn(_windows(own, context, limit, seed), _masked if masked else _next, seed))
    name = ("text" if root is None else folder.resolve().name) + "_masked" * masked
    return Data(name, halves[0], halves[1], len(VOCABULARY), VOCABULARY, metric="perplexity")


def encoded(characters: str) -> np.ndarray:
    """Indices in the vocabulary, (n,) uint8."""
    points = np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return _IDS[np.minimum(points, _LAST)]


def _files(folder: Path, pattern: str) -> list[Path]:
    try:
        files = sorted(path for path in folder.glob(pattern) if path.is_file())
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(f"dataset.pattern is '{pattern}': give one such as '*.txt'.") from error
    if len(files) < 2:
        raise ConfigError(
            f"{folder} has {len(files)} files that match dataset.pattern '{pattern}': give at least two, "
            "one for each half."
        )
    return files


@dataclass(frozen=True, eq=False)
class _Windows:
    tokens: np.ndarray  # (characters,) uint8
    starts: np.ndarray  # (n,)
    context: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int, /) -> Tensor:
        """Tokens (context + 1,)."""
        start = self.starts[index]
        return torch.from_numpy(self.tokens[start : start + self.context + 1].astype(np.int64))


def _windows(files: list[Path], context: int, limit: int | None, seed: int) -> _Windows:
    try:
        tokens = encoded("".join(file.read_text(encoding="utf-8", errors="replace") for file in files))
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename} ({error.strerror}): remove the file.") from error
    count = (len(tokens) - 1) // context
    if count < 1:
        raise ConfigError(
            f"dataset.context is {context}, but a half of the text has {len(tokens)} characters: give a "
            "shorter context, or more text."
        )
    return _Windows(tokens, limited(count, limit, seed) * context, context)


def _next(window: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    return window[:-1], window[1:]


def _masked(window: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Mask equally many characters in every window, so a batch's mean is that of its micro-batches."""
    tokens, targets = window[:-1].clone(), torch.full((len(window) - 1,), IGNORED)
    count = max(1, round(MASKED_FRACTION * len(tokens)))
    chosen = torch.from_numpy(rng.permutation(len(tokens))[:count])
    targets[chosen] = tokens[chosen]
    how = torch.from_numpy(rng.random(count))
    other = torch.from_numpy(rng.integers(2, len(VOCABULARY), size=count))
    shown = torch.where(how < SHOWN_AS_MASK, MASK, tokens[chosen])
    tokens[chosen] = torch.where(how >= 1 - SHOWN_AS_OTHER, other, shown)
    return tokens, targets
