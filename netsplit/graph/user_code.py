"""The user's own code: its lines in errors, what it reaches, and its Python state put back after a run.

What is kept is what that code can change: attributes, containers, closures, and the globals that it names.
"""

from __future__ import annotations

import functools
import linecache
import random
import sys
import sysconfig
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from logging import Logger
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = [
    "frame_of", "has_contents", "is_own_file", "is_own_module", "is_users", "kept", "line_of",
    "names_in", "quoted", "reached", "user_frame", "where_of",
]  # fmt: skip

_DEEPEST = 4000
"""Python's recursion limit while modules run: ours add calls between theirs."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

_CLOSED = (*_PLAIN, Tensor, CodeType, torch.dtype, torch.device, np.ndarray, torch.Generator, Logger)


_MOST, _LONG = 20_000, 4096


_PLACES = (sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"])

_INSTALLED = (*_PLACES, *(each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")))

PutBack = Callable[[], Any]


@contextmanager
def kept(*modules: Any) -> Iterator[None]:
    """Modules, all that their code reaches and random generators are put back, whatever runs inside."""
    with ExitStack() as stack:
        stack.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEPEST))
        stack.enter_context(warnings.catch_warnings())
        for put_back in _world():
            stack.callback(put_back)
        spaces: dict[int, dict[str, Any]] = {}
        for value in reached(modules):
            for put_back in _kept(value):
                stack.callback(put_back)
            if isinstance(value, FunctionType) and is_own_file(value.__code__.co_filename):
                spaces |= {id(space): space for space in spaces_of(value)}
        for space in spaces.values():
            stack.callback(_rebind, space, dict(space))
        yield


def _world() -> Iterator[PutBack]:
    numpy: Any = np.random.get_state()
    yield functools.partial(torch.set_rng_state, torch.get_rng_state())
    yield functools.partial(random.setstate, random.getstate())
    yield functools.partial(np.random.set_state, numpy)
    yield functools.partial(torch.set_default_dtype, torch.get_default_dtype())
    yield functools.partial(torch.set_grad_enabled, torch.is_grad_enabled())


def _kept(value: Any) -> Iterator[PutBack]:
    """What puts an object back, if anything has to."""
    if isinstance(value, Tensor):
        if not is_lazy(value):
            yield _kept_tensor(value)
    elif isinstance(value, CellType):
        if has_contents(value):
            yield functools.partial(setattr, value, "cell_contents", value.cell_contents)
    elif isinstance(value, type):
        if is_own_module(value.__module__):
            yield functools.partial(_class_back, value, dict(vars(value)))
    elif isinstance(value, np.ndarray):
        if value.flags.writeable:
            yield functools.partial(np.copyto, value, value.copy())
    elif isinstance(value, functools._lru_cache_wrapper):
        yield value.cache_clear  # it may hold what has no values
    elif isinstance(value, torch.Generator | np.random.RandomState):
        before: Any = value.get_state()
        yield functools.partial(value.set_state, before)
    elif not isinstance(value, FunctionType | ModuleType):
        if isinstance(value, dict | list | set | deque):
            yield functools.partial(_put_back, value, _copied(value))
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            yield functools.partial(_put_back, own, dict(own))


def _class_back(kind: type, before: Mapping[str, Any]) -> None:
    for key in set(vars(kind)) - set(before):
        if not key.startswith("__"):
            delattr(kind, key)
    for key, value in before.items():
        if vars(kind).get(key) is not value:
            setattr(kind, key, value)


def _kept_tensor(tensor: Tensor) -> PutBack:
    value = None if tensor.is_meta else tensor.detach().clone()
    data = tensor.detach()  # its own memory, should it be given other
    leaf = tensor.is_leaf
    asks = tensor.requires_grad
    grad = tensor.grad if leaf else None
    if leaf and grad is not None:
        tensor.grad = None

    def back() -> None:
        if (tensor.dtype, tensor.shape) != (data.dtype, data.shape):
            tensor.data = data
        if value is not None and not _same(tensor, value):
            tensor.data.copy_(value)
        if tensor.is_leaf and tensor.requires_grad != asks:
            tensor.requires_grad_(asks)
        if leaf and tensor.grad is not grad:
            tensor.grad = grad

    return back


def _rebind(space: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Put back globals that were bound to something else; what a library loads at first use stays."""
    for key, value in before.items():
        if space.get(key) is not value:
            space[key] = value
    for key in [key for key in space if key not in before and isinstance(space[key], (*_PLAIN, Tensor))]:
        del space[key]


def _same(a: Tensor, b: Tensor) -> bool:
    try:
        return torch.equal(a.detach(), b)
    except RuntimeError:  # layouts and dtypes that cannot be compared
        return False


def _copied(store: Any) -> Any:
    """A copy of the contents, though the class returns something else (a registry that makes instances)."""
    if isinstance(store, dict):
        return dict(dict.items(store))
    return _kind_of(store).copy(store)


def _kind_of(store: Any) -> Any:
    return next(kind for kind in (OrderedDict, dict, list, set, deque) if isinstance(store, kind))


def _put_back(store: Any, before: Any) -> None:
    """Refill a store past the methods of its own class, which may change what is put in."""
    now, kind = _copied(store), _kind_of(store)
    if isinstance(store, dict):
        if now.keys() == before.keys() and all(now[k] is v for k, v in before.items()):
            return
        kind.clear(store)
        for key, value in before.items():
            kind.__setitem__(store, key, value)
    elif len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
        kind.clear(store)
        (kind.update if kind is set else kind.extend)(store, before)


def reached(roots: Iterable[Any]) -> list[Any]:
    """Objects within reach, each once, the nearest first; code of installed packages is not entered."""
    values: dict[int, Any] = {}
    queue = deque(roots)
    while queue and len(values) < _MOST:
        value = queue.popleft()
        if id(value) not in values and not isinstance(value, _PLAIN):
            values[id(value)] = value
            queue.extend(_parts(value))
    return list(values.values())


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, CellType):
        return [value.cell_contents] if has_contents(value) else []
    if isinstance(value, type):
        own = (each for each in value.__mro__ if is_own_module(each.__module__))
        return [part for each in own for part in vars(each).values()]
    if isinstance(value, (*_CLOSED, ModuleType)):
        return []
    parts = list((getattr(value, "__dict__", None) or {}).values())
    if isinstance(value, nn.Module):  # of TorchScript they are in no dictionary
        parts += [*value._parameters.values(), *value._buffers.values(), *value._modules.values()]
    if isinstance(value, dict):
        parts += list(dict.values(value))[:_LONG]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        parts += list(value)[:_LONG]
    elif isinstance(value, MethodType):
        parts += [value.__self__, value.__func__]
    elif isinstance(value, staticmethod | classmethod):
        parts.append(value.__func__)
    elif isinstance(value, property):
        parts.append(value.fget)
    elif isinstance(value, functools.partial):
        parts += [value.func, value.args, value.keywords]
    elif is_own_module(type(value).__module__):
        parts.append(type(value))
    return parts


def _of_function(function: FunctionType) -> Iterator[Any]:
    wrapped = getattr(function, "__wrapped__", None)  # as of torch.no_grad()
    if wrapped is not None:
        yield wrapped
    if is_own_file(function.__code__.co_filename):
        yield from function.__closure__ or ()
        yield from (function.__defaults__, function.__kwdefaults__, vars(function))
        names = names_in(function.__code__)
        for space in spaces_of(function):
            yield from (space[key] for key in names if key in space)


def spaces_of(function: FunctionType) -> Iterator[dict[str, Any]]:
    """Namespaces that a function's code may set names of: its globals, and the user's modules it names."""
    yield function.__globals__
    for key in names_in(function.__code__):
        module = function.__globals__.get(key, sys.modules.get(key))
        if isinstance(module, ModuleType) and is_own_module(module.__name__):
            yield vars(module)


@functools.lru_cache(maxsize=10_000)
def names_in(code: CodeType) -> frozenset[str]:
    """All that code names beside its own variables."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*map(names_in, inner))


def has_contents(cell: CellType) -> bool:
    """Whether a variable around a function has a value already."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def is_own_file(file: str) -> bool:
    """Whether a source file is the user's, not installed and not of this package's graphs."""
    return is_users(file) and not file.startswith(_INSTALLED)


def is_own_module(name: str) -> bool:
    """Whether a module is code of the user's, by its file; one without a file is a script or a notebook."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        written = module is None or getattr(module, "__spec__", None) is None
        return name == "__main__" or (written and name != "builtins")
    return is_own_file(file)


_LONGEST = 120  # characters of a line of code that is quoted

_TORCH = str(Path(torch.__file__).parent)

_HERE = str(Path(__file__).parent)

_STEP = str(Path(__file__).parent / "recording" / "step.py")


def quoted(frame: str) -> str:
    """``file:line`` with the code that is there."""
    file, _, line = frame.rpartition(":")
    code = linecache.getline(file, int(line)).strip() if line.isdigit() else ""
    code = code if len(code) <= _LONGEST else f"{code[:_LONGEST]} …"
    return f"{frame} ('{code}')" if code else frame


def where_of(error: BaseException) -> str:
    """ " at file:line ('code')" of the user's innermost line; "" where there is none."""
    frame = frame_of(error)
    return f" at {quoted(frame)}" if frame else ""


def frame_of(error: BaseException) -> str:
    """``file:line`` of the user's innermost line that an error came through."""
    frame, trace = "", error.__traceback__
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            frame = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return frame


def line_of(error: BaseException) -> str:
    """The first line of its message."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")


def user_frame() -> str:
    """``file:line`` of the innermost frame that is neither torch's nor of this room; "" where there is none.

    Callers of the training step are not looked at.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _STEP:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


_USERS: dict[str, bool] = {}


def is_users(file: str) -> bool:
    """Whether a source file is neither torch's nor of this room."""
    known = _USERS.get(file)
    if known is None:
        known = not file.startswith((_TORCH, _HERE, "<")) and not file.endswith("contextlib.py")
        _USERS[file] = known
    return known
