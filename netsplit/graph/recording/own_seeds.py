"""Torch's generator, set by a model's own code: ``manual_seed``, ``fork_rng``, ``set_rng_state``.

Draws without data move no generator. So a recording does, after every draw, to a seed that nobody else has:
where the generator has another seed than we gave it, the model has set it, whatever it called for that.

    MarkedGenerator   while recording: has the model set it?
    Watch             in real runs of what stays whole: is it left set, is it set to what others have left?
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

from netsplit.errors import CaptureError
from netsplit.graph.code_places import quoted, user_frame

__all__ = [
    "SETTERS_OF_DEVICES", "MarkedGenerator", "SeedWatch", "SeededCall", "marked", "process_seed_told",
    "setters_told", "told",
]  # fmt: skip

_MARKS = itertools.count(int.from_bytes(b"netsplit"))
_HOMES: tuple[Any, ...] = (torch, torch.random)
SETTERS = ("manual_seed", "seed", "set_rng_state")
SETTERS_OF_DEVICES = (*SETTERS, "manual_seed_all", "seed_all", "set_rng_state_all")

_OF_AN_EARLIER_STEP = (
    "it sets the state of torch's generator to one that an earlier step left: keep in a buffer what was "
    "drawn, or take the draw from the batch"
)

Told = Callable[[str], None]


def marked() -> int:
    """A seed for the CPU's generator that nobody else gives it."""
    seed = next(_MARKS)
    torch.default_generator.manual_seed(seed)
    return seed


class MarkedGenerator:
    """Torch's generator while a model is recorded: with a seed of ours, anew at every draw.

    Args:
        failure: of a recorder, as its `failure`.
        modules: that are running, the outermost first.
    """

    def __init__(self, failure: Callable[..., BaseException], modules: list[tuple[nn.Module, str]]) -> None:
        self.failure = failure
        self.modules = modules
        self.process_seed = torch.default_generator.initial_seed()
        self.in_one_piece = 0  # functions that are entered, and are one call
        self._left_set_in: tuple[nn.Module, ...] | None = None
        self._mark_anew()

    def look(self) -> None:
        """Where the model's code has just set the generator, that is a part which stays whole.

        Raises:
            Unrecordable: it has.
        """
        if self._moved:
            self.is_set()

    def is_set(self) -> None:
        """The model's code sets the generator, of whatever device.

        Raises:
            Unrecordable: not within a function that is one call.
        """
        if not self.in_one_piece:
            raise self.failure(
                "it sets the state of torch's generator (torch.manual_seed, set_rng_state, fork_rng)"
            )

    def draw(self) -> None:
        """Something draws, from the generator as the model's code has left it.

        Raises:
            Unrecordable: it has set it, or what stays whole before this has.
        """
        self.look()
        self._mark_anew()
        if self._left_set_in is not None:
            raise self.failure(
                "it draws after its code set torch's generator, and so by that seed", shared=self._left_set_in
            )

    def left_set(self) -> None:
        """What ran as one piece has left the generator with a seed of its own."""
        self._left_set_in = tuple(module for module, _ in self.modules)

    @contextmanager
    def one_piece(self) -> Iterator[None]:
        """Around a function that is one call: it may set the generator, since it does so wherever it runs."""
        self.draw()
        self.in_one_piece += 1
        try:
            yield
        finally:
            self.in_one_piece -= 1
        if self._moved:
            self.left_set()
        self._mark_anew()

    def is_torchs(self, generator: torch.Generator) -> bool:
        """Whether it is torch's own, which is another Python object in every operator."""
        self.look()
        self._mark_anew()
        return generator.initial_seed() == self._mark

    @property
    def _moved(self) -> bool:
        return torch.default_generator.initial_seed() != self._mark

    def _mark_anew(self) -> None:
        self._mark = marked()


@contextmanager
def told(functions: Mapping[str, Told], home: Any = torch) -> Iterator[None]:
    """Calls of functions of a module are told, with their names, when they are done."""

    def telling(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            functions[name](name)
            return result

        return call

    with ExitStack() as stack:
        for name in functions:
            stack.enter_context(mock.patch.object(home, name, telling(name, getattr(home, name))))
        yield


@contextmanager
def setters_told(tell: Told, read: Told = lambda _: None) -> Iterator[None]:
    """`tell` is called with a function's name after each that sets the CPU's generator.

    Args:
        read: the same of the one that reads its state.
    """
    functions = {**dict.fromkeys(SETTERS, tell), "get_rng_state": read}
    with told(functions), told(functions, torch.random):
        yield


@contextmanager
def process_seed_told(answer: Callable[[], int]) -> Iterator[None]:
    """``torch.initial_seed`` is what `answer` gives: the generator has a seed of ours meanwhile."""
    with ExitStack() as stack:
        for home in _HOMES:
            stack.enter_context(mock.patch.object(home, "initial_seed", answer))
        yield


@dataclass(eq=False)
class SeededCall:
    """What a real call of a module did to torch's generator.

    Attributes:
        seed: which it began with.
        own: seeds of the states that it may have read itself.
        draws: it moved the generator.
        leaves: the generator has another seed afterwards, from which the draws after it follow.
        borrows: the line that sets a state which was read outside of this call; "" where there is none.
    """

    seed: int
    own: set[int]
    state: torch.Tensor
    draws: bool = False
    leaves: bool = False
    borrows: str = ""


class SeedWatch:
    """Real runs of a step, in which every call to be watched begins with a seed of its own."""

    def __init__(self) -> None:
        self.process_seed = torch.default_generator.initial_seed()
        self.runs = 0
        self.given: dict[int, int] = {}  # seed -> run
        self.states: dict[bytes, int] = {}  # that were read -> run
        self.brought: set[bytes] = set()  # that were set, and not read in any run before
        self.active: list[SeededCall] = []
        self.refused = ""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around one run.

        Raises:
            CaptureError: it does with the generator what a worker cannot; names the line.
        """
        self.runs += 1
        self.active.clear()
        self._seed()
        with setters_told(self._set, self._read), process_seed_told(self._read_seed):
            yield
        if self.refused:
            raise CaptureError(self.refused)

    def enter(self) -> SeededCall:
        seed = self._seed()
        for call in self.active:
            call.own.add(seed)
        self.active.append(SeededCall(seed, {seed}, torch.default_generator.get_state()))
        return self.active[-1]

    def leave(self, call: SeededCall) -> None:
        """And calls inside it that an error has ended."""
        self._look()
        del self.active[self.active.index(call) :]
        call.draws = not torch.equal(torch.default_generator.get_state(), call.state)
        call.leaves = torch.default_generator.initial_seed() != call.seed

    def _seed(self) -> int:
        seed = marked()
        self.given[seed] = self.runs
        return seed

    def _set(self, name: str) -> None:
        if name == "seed" and self.active:
            self._refuse(
                "it takes a seed from the system (torch.seed), so that no two trainings draw the same: give "
                "torch.manual_seed a number"
            )
        state = _state()
        before = self.states.get(state)
        if before is None:
            self.brought.add(state)
        elif before != self.runs and state not in self.brought:
            self._refuse(_OF_AN_EARLIER_STEP)
        self._look()

    def _read(self, _: str) -> None:
        self.states[_state()] = self.runs

    def _read_seed(self) -> int:
        seed = torch.default_generator.initial_seed()
        if seed not in self.given:
            return seed
        if self.active:
            self._refuse(
                "it reads the seed of the process (torch.initial_seed), which is another on a worker: keep "
                "the number in an attribute of the module"
            )
        return self.process_seed

    def _look(self) -> None:
        seed = torch.default_generator.initial_seed()
        for call in self.active:
            if seed not in self.given or seed in call.own:
                continue
            call.borrows = call.borrows or user_frame()
            if self.given[seed] != self.runs:
                self._refuse(_OF_AN_EARLIER_STEP)

    def _refuse(self, why: str) -> None:
        frame = user_frame()
        self.refused = self.refused or (f"at {quoted(frame)} {why}" if frame else why)


def _state() -> bytes:
    return bytes(torch.default_generator.get_state().numpy())
