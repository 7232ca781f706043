"""Errors a user can cause; each message is one sentence: what is wrong, where, what to do."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

__all__ = [
    "BatchError",
    "CaptureError",
    "ConfigError",
    "DeadlockError",
    "InfeasibleError",
    "ModelSizeError",
    "NetSplitError",
    "NonFiniteError",
    "ReshardError",
    "RewriteError",
    "TimeLimitError",
    "WorkerError",
    "brief",
    "plain_errors",
]

P = ParamSpec("P")
R = TypeVar("R")

_OTHERS = (str(Path(__file__).parent), *(sysconfig.get_paths()[key] for key in ("stdlib", "purelib")), "<")
_BRIEF = 60  # characters
_WAITING = str(Path(__file__).parent / "runtime" / "workers")


class NetSplitError(ValueError):
    """Base of all errors a user can fix; printed without a traceback."""


class ConfigError(NetSplitError):
    """A configuration key or value that cannot be used."""


class CaptureError(NetSplitError):
    """A model that cannot be captured as a graph."""


class RewriteError(NetSplitError):
    """An operator that cannot be split or moved as asked."""

    operator = ""  # the captured one, where it is known


class ReshardError(NetSplitError):
    """A layout, mesh or network between which nothing can be moved."""


class InfeasibleError(NetSplitError):
    """No placement satisfies the memory limits."""

    nearest: object = None  # the nearest placement, of methods that check peaks
    remedy = ""  # what else may help, after a comma


class ModelSizeError(NetSplitError):
    """A method's optimisation model that is larger than the method allows."""


class TimeLimitError(NetSplitError):
    """A method that did not finish in its time limit."""


class DeadlockError(NetSplitError):
    """A program whose instructions wait for one another in a circle."""


class NonFiniteError(NetSplitError):
    """A loss that is no finite number."""


class WorkerError(NetSplitError):
    """A worker process that died, raised, or hung."""


class BatchError(WorkerError):
    """A batch that a device could not compute; workers live on, and the model is unchanged."""


class ReadError(NetSplitError):
    """A sample that cannot be read; the model is unchanged."""


def brief(value: object) -> str:
    """A value for an error message: one line, shortened if long."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except ValueError:  # an integer with too many digits for Python to print
        text = f"a {type(value).__name__} too long to print"
    return text if len(text) <= _BRIEF else text[: _BRIEF - 1] + "…"


def plain_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Show `NetSplitError`s with one traceback, and a second one only for the user's own code.

    An interrupt while it waits for workers comes without this package's, which would keep the model.
    """

    @wraps(function)
    def plain(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except NetSplitError as error:
            raise error from _of_users(error)
        except KeyboardInterrupt as stop:
            if not _innermost(stop).startswith(_WAITING):
                raise
            args, kwargs, by = (), {}, stop.args  # type: ignore[assignment]
        raise KeyboardInterrupt(*by)

    return plain


def _innermost(error: BaseException) -> str:
    """The file of the code that raised it; "" if unknown."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_filename


def _of_users(error: BaseException) -> BaseException | None:
    """The cause of an error, if a line of the user's own raised it."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None or isinstance(cause, NetSplitError):
        return None if cause is None else _of_users(cause)
    if (file := _innermost(cause)) and not file.startswith(_OTHERS):
        cause.__suppress_context__ = True  # an earlier attempt's error
        return cause
    return _of_users(cause)
