"""A forward may draw, but not set torch's generator: split, each node draws by a seed of its own.

no_seeds          around every run of a model: torch's functions that set the generator are refused
MarkedGenerator   while recording, where draws move no generator: is it set in another way?
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from netsplit.errors import CaptureError
from netsplit.graph.code_places import is_users, quoted, user_frame

__all__ = ["MarkedGenerator", "marked", "no_seeds"]

_MARKS = itertools.count(int.from_bytes(b"netsplit"))
_SETTERS = ("manual_seed", "seed", "set_rng_state", "fork_rng", "initial_seed")
_OF_DEVICES = ("manual_seed", "seed", "set_rng_state", "manual_seed_all", "seed_all", "set_rng_state_all")


def marked() -> int:
    """A seed for the CPU's generator that nobody else gives it."""
    seed = next(_MARKS)
    torch.default_generator.manual_seed(seed)
    return seed


def _refuse(what: str) -> NoReturn:
    frame = user_frame()
    where = f" at {quoted(frame)}" if frame else ""
    raise CaptureError(
        f"the forward sets torch's generator, or asks for its seed ({what}){where}, and split, every "
        "operator draws by a seed of its own: take from the batch what is drawn by a fixed seed, or keep it "
        "in a buffer."
    )


@contextmanager
def no_seeds() -> Iterator[None]:
    """Torch's own code may set its generator meanwhile, as its checkpoints do.

    Raises:
        CaptureError: other code does; names the line.
    """

    names = [(home, name) for home in (torch, torch.random) for name in _SETTERS]
    names += [(torch.cuda, name) for name in _OF_DEVICES]
    originals = [(home, name, getattr(home, name)) for home, name in names if hasattr(home, name)]
    try:
        for home, name, original in originals:
            setattr(home, name, _guarded(name, original))
        yield
    finally:
        for home, name, original in originals:
            setattr(home, name, original)


def _guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_users(sys._getframe(1).f_code.co_filename):
            _refuse(f"torch.{name}")
        return original(*args, **kwargs)

    return call


class MarkedGenerator:
    """Torch's generator while a model is recorded: with a seed of ours, anew at every draw."""

    def __init__(self) -> None:
        self._mark = marked()

    def look(self) -> None:
        """Raises CaptureError: the model's code has set the generator."""
        if torch.default_generator.initial_seed() != self._mark:
            _refuse("torch.default_generator")

    def draw(self) -> None:
        """Something draws; raises as `look`."""
        self.look()
        self._mark = marked()

    def is_torchs(self, generator: torch.Generator) -> bool:
        """Whether it is torch's own, which is another Python object in every operator."""
        self.draw()
        return generator.initial_seed() == self._mark
