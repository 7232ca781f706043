"""The arguments of a call as templates: what they read, one of them, all of them under other names.

A template is what `graph.template` has for a value; tensors in it are references.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

__all__ = ["Reference", "Templates", "argument", "read_by", "references", "renamed"]

Reference = tuple[str, str]  # "var" or "init", name


class Templates(Protocol):
    """Whatever holds the arguments of a call: a node, a call that was recorded."""

    @property
    def args(self) -> Sequence[Any]: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...


def references(template: Any) -> Iterator[Reference]:
    """Every reference in a template, in order."""
    if isinstance(template, list | tuple):
        for item in template:
            yield from references(item)
    elif isinstance(template, dict):
        ((tag, name),) = template.items() if len(template) == 1 else ((None, None),)
        if tag in ("var", "init") and isinstance(name, str):
            yield tag, name


def argument(call: Templates, i: int, name: str = "") -> Any:
    """The template that a call has at a place or under a name; None where it has none."""
    return call.args[i] if len(call.args) > i else call.kwargs.get(name)


def read_by(call: Templates) -> list[Reference]:
    """Every reference in a call's arguments, in order."""
    return list(references([*call.args, *call.kwargs.values()]))


def renamed(call: Templates, names: Mapping[Reference, Reference]) -> dict[str, Any]:
    """`args` and `kwargs` of a call with other references, for `dataclasses.replace`."""

    def other(template: Any) -> Any:
        if isinstance(template, list | tuple):
            return type(template)(other(item) for item in template)
        if isinstance(template, dict) and len(template) == 1:
            ((tag, name),) = template.items()
            new = names.get((tag, name)) if isinstance(name, str) else None
            return {new[0]: new[1]} if new else template
        return template

    return {"args": other(call.args), "kwargs": {key: other(value) for key, value in call.kwargs.items()}}
