"""Configs of `compare` for commands that are no Hydra programs, composed without torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from netsplit import session as sessions
from netsplit.errors import ConfigError

from .._entry import CONF, sentence

__all__ = ["composed", "requested"]


def composed(overrides: list[str], folder: str | None) -> Any:
    """The config of `compare` with overrides and a folder of the user's options.

    Raises:
        ConfigError: no such option or key.
    """
    if folder is not None:
        overrides = [*overrides, f"hydra.searchpath=['{Path(folder).resolve()}']"]
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", overrides)
    except HydraException as error:
        raise ConfigError(sentence(error)) from error


def requested(folder: str | None, overrides: Iterable[str], **options: str) -> sessions.Request:
    """What is asked for, of which only the parts are taken, not the model.

    Args:
        options: config group -> the option chosen.

    Raises:
        ConfigError: no such option or key, or a value that cannot be used.
    """
    words = [f"{group}={option}" for group, option in options.items()]
    return sessions.Request(composed([*words, "tracking=none", *overrides], folder))
