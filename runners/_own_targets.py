"""`model._target_=my_pkg.build` on the command line: the keys of the option are another target's, and go.

    model._target_=my_pkg.build model.width=3   what my_pkg.build takes: width; nothing of the option chosen

`model` itself stays what it was for who gives no `_target_`.
"""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf, open_dict

from netsplit.signature import PARTIAL, TARGET

__all__ = ["addable", "of_own_targets", "own_names"]

_FORCE = "++"  # Hydra: set, whether it is there or not


def addable(words: Sequence[str]) -> list[str]:
    """A command's words, with ++ before keys that only the user's target has."""
    nodes = _nodes(words)

    def word_of(word: str) -> str:
        own = not word.startswith(("-", "~", "+")) and any(
            _key(word).startswith(f"{node}.") for node in nodes
        )
        return f"{_FORCE}{word}" if own else word

    return [word_of(word) for word in words]


def of_own_targets(cfg: DictConfig, words: Sequence[str]) -> DictConfig:
    """The config without what the options had given to other targets than those of the command line.

    Args:
        words: the overrides, all of which `cfg` has already.
    """
    keys = {_key(word) for word in words}
    answer = cfg.copy()
    for node in _nodes(words):
        config = OmegaConf.select(answer, node)
        if not isinstance(config, DictConfig):
            continue
        with open_dict(config):
            for name in [str(key) for key in config]:
                place = f"{node}.{name}"
                kept = name in (TARGET, PARTIAL) or any(f"{key}.".startswith(f"{place}.") for key in keys)
                if not kept:
                    del config[name]
    return answer


def own_names(words: Sequence[str]) -> dict[str, str]:
    """Node -> the last part of its `_target_` on the command line."""
    targets = {_key(word): word.partition("=")[2].strip("'\" ") for word in words if "=" in word}
    return {node: targets[f"{node}.{TARGET}"].rpartition(".")[2] for node in _nodes(words)}


def _nodes(words: Sequence[str]) -> list[str]:
    """Nodes with a `_target_` on the command line: `model`."""
    keys = [_key(word) for word in words if "=" in word and not word.startswith(("-", "~"))]
    return [key.removesuffix(f".{TARGET}") for key in keys if key.endswith(f".{TARGET}")]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+").strip()
