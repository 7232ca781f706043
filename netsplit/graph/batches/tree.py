"""Any Python value as a flat list of tensors and the structure around them.

    value ──flatten──► tensors, Tree ──Tree.build(tensors)──► a value of the same structure

Structures are what torch's pytrees know (tuples, lists, dicts, named tuples, whatever was registered),
dataclasses, subclasses of the containers, and any object that has a tensor in an attribute, such as a cache.
What is no tensor stays in the structure: two values of one structure differ in their tensors alone.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from netsplit.errors import NetSplitError

__all__ = ["Marked", "Tree", "flatten", "is_named_tuple"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_WHOLE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, nn.Module, torch.Generator)


@dataclass(frozen=True)
class Marked:
    """A tensor of a batch with the dimension of its samples; None: it has none (see `batches.batch`)."""

    tensor: Tensor
    dim: int | None


@dataclass(frozen=True)
class _TensorLeaf:
    """Where tensor number `index` stands."""

    index: int

    def build(self, tensors: Sequence[Any]) -> Any:
        return tensors[self.index]

    def key(self) -> Hashable:
        return self.index


@dataclass(frozen=True)
class _Static:
    value: Any

    def build(self, tensors: Sequence[Any]) -> Any:
        return self.value

    def key(self) -> Hashable:
        return _frozen(self.value)


@dataclass(frozen=True)
class _Branch:
    """A container that torch's pytrees know; `spec` is of this one level."""

    spec: Any
    children: tuple[_Item, ...]

    def build(self, tensors: Sequence[Any]) -> Any:
        return tree_unflatten([child.build(tensors) for child in self.children], self.spec)

    def key(self) -> Hashable:
        return self.spec.type, _frozen(self.spec.context), tuple(child.key() for child in self.children)


@dataclass(frozen=True)
class _Object:
    """An object by its attributes and what it holds as a container; built without its `__init__`."""

    kind: type
    attributes: tuple[str, ...]
    keys: tuple[Any, ...] | None  # of a dict; None: no dict
    children: tuple[_Item, ...]  # of the attributes, then of what it holds

    def build(self, tensors: Sequence[Any]) -> Any:
        values = [child.build(tensors) for child in self.children]
        held = values[len(self.attributes) :]
        if issubclass(self.kind, tuple):
            instance: Any = tuple.__new__(self.kind, held)
        else:
            base: Any = next((b for b in (OrderedDict, dict, list) if issubclass(self.kind, b)), object)
            instance = base.__new__(self.kind)
            for key, value in zip(self.keys or (), held, strict=False):
                base.__setitem__(instance, key, value)
            if base is list:
                list.extend(instance, held)
        for name, value in zip(self.attributes, values, strict=False):
            object.__setattr__(instance, name, value)
        return instance

    def key(self) -> Hashable:
        return self.kind, self.attributes, _frozen(self.keys), tuple(child.key() for child in self.children)


_Item = _TensorLeaf | _Static | _Branch | _Object


@dataclass(frozen=True)
class Tree:
    """The structure of a value with `count` tensors."""

    root: _Item
    count: int

    def build(self, tensors: Sequence[Any]) -> Any:
        """The value with these in the places of its tensors."""
        return self.root.build(tensors)

    @cached_property
    def key(self) -> Hashable:
        """Equal for values that differ in nothing but tensors.

        Raises:
            NetSplitError: something in it is neither a tensor nor can be compared, such as a NumPy array.
        """
        return self.root.key()

    def statics(self) -> list[Any]:
        """What is no tensor, in order."""
        return [leaf.value for leaf in _leaves(self.root) if isinstance(leaf, _Static)]


def flatten(value: Any, merge: bool = False) -> tuple[list[Tensor], Tree, list[Marked | None]]:
    """Tensors of a value in order, its structure, and the mark of each tensor that had one.

    Args:
        merge: a tensor that stands in several places is taken once.

    Raises:
        NetSplitError: the value contains itself.
    """
    flat = _Flat(merge)
    root = flat.item(value)
    return flat.tensors, Tree(root, len(flat.tensors)), flat.marks


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


class _Flat:
    def __init__(self, merge: bool) -> None:
        self.tensors: list[Tensor] = []
        self.marks: list[Marked | None] = []
        self.merge = merge
        self.place_of: dict[int, int] = {}
        self.above: set[int] = set()

    def item(self, value: Any) -> _Item:
        if isinstance(value, Tensor):
            return self._tensor(value, None)
        if isinstance(value, Marked):
            return self._tensor(value.tensor, value)
        if isinstance(value, (*_PLAIN, *_WHOLE)):
            return _Static(value)
        if id(value) in self.above:
            raise NetSplitError(
                f"a {type(value).__name__} in a batch or an output contains itself: leave that reference out."
            )
        self.above.add(id(value))
        try:
            return self._structure(value)
        finally:
            self.above.discard(id(value))

    def _tensor(self, tensor: Tensor, mark: Marked | None) -> _TensorLeaf:
        if not self.merge or id(tensor) not in self.place_of:
            self.place_of[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.marks.append(mark)
        return _TensorLeaf(self.place_of[id(tensor)])

    def _structure(self, value: Any) -> _Item:
        opened = iter([False])  # the value itself; what is in it stays whole
        children, spec = tree_flatten(value, is_leaf=lambda _: next(opened, True))
        if not spec.is_leaf():
            return _Branch(spec, tuple(self.item(child) for child in children))
        item = self._object(value)
        always = dataclasses.is_dataclass(value) or isinstance(value, dict | list | tuple)
        if not always and not any(isinstance(leaf, _TensorLeaf) for leaf in _leaves(item)):
            return _Static(value)
        return item

    def _object(self, value: Any) -> _Item:
        attributes = _attributes(value)
        held: list[Any] = []
        keys = None
        if isinstance(value, dict):
            keys, held = tuple(dict.keys(value)), list(dict.values(value))
        elif isinstance(value, list | tuple):
            held = list(value)
        if not attributes and not isinstance(value, dict | list | tuple):
            return _Static(value)
        children = tuple(self.item(child) for child in (*attributes.values(), *held))
        return _Object(type(value), tuple(attributes), keys, children)


def _leaves(item: _Item) -> Iterator[_TensorLeaf | _Static]:
    if isinstance(item, _Branch | _Object):
        for child in item.children:
            yield from _leaves(child)
    else:
        yield item


def _attributes(value: Any) -> dict[str, Any]:
    """The instance's attributes, its slots among them."""
    slots = [cls.__dict__.get("__slots__", ()) for cls in type(value).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    slotted = {k: getattr(value, k) for k in names if not k.startswith("__") and _is_set(value, k)}
    return slotted | dict(getattr(value, "__dict__", {}))


def _is_set(value: Any, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True


def _frozen(value: Any, above: frozenset[int] = frozenset()) -> Hashable:
    """Equal exactly where the values are, types and all; objects by what they hold now."""
    if isinstance(value, float | complex):
        return type(value), repr(value)  # nan equals itself, 0.0 is not -0.0
    if id(value) in above:
        return (type(value),)
    above |= {id(value)}
    if isinstance(value, list | tuple):
        return type(value), tuple(_frozen(each, above) for each in value)
    if isinstance(value, Mapping):
        return type(value), tuple((_frozen(k, above), _frozen(each, above)) for k, each in value.items())
    held = {} if isinstance(value, (*_PLAIN, *_WHOLE)) else _attributes(value)
    if held:
        content = tuple((name, _frozen(each, above)) for name, each in held.items())
        return type(value), content, _comparable(value) if _is_value(value) else None
    return type(value), _comparable(value)


def _is_value(value: Any) -> bool:
    """Whether it may be more than its attributes: a number, text or date of a class with some."""
    kind: Any = type(value)
    return kind.__eq__ is not object.__eq__ and kind.__hash__ is not None


def _comparable(value: Any) -> Hashable:
    try:
        hash(value)
    except TypeError as error:
        raise NetSplitError(
            f"a batch has a {type(value).__module__}.{type(value).__name__}, whose values cannot be "
            "compared: give arrays as tensors, and other objects a __hash__ and an __eq__."
        ) from error
    key: Hashable = value
    return key
