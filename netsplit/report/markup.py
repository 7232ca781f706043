"""HTML and SVG as trees: what a name holds is text, never markup, and every element is closed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element, tostring

__all__ = ["Child", "Element", "breakable", "clean", "element", "link_to", "short", "text_of"]

Child = Element | str | None

_WORD = 20  # characters that stay together

_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


def element(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """An element; None among children and attributes is left out.

    Attribute names are Python's: ``class_`` is class, ``text_anchor`` is text-anchor.
    """
    given = {
        name.rstrip("_").replace("_", "-"): clean(_attribute(value))
        for name, value in attributes.items()
        if value is not None
    }
    found = Element(tag, given)
    for child in children:
        if isinstance(child, Element):
            found.append(child)
        elif child is not None:
            _append(found, clean(child))
    return found


def clean(text: str) -> str:
    """Without control characters and those that reorder what is beside them."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def breakable(text: str) -> list[Child]:
    """`text` that may go on in the next line within a word, where that is longer than names are."""
    parts = re.split(f"(\\S{{{_WORD}}})(?=\\S)", clean(text))
    children: list[Child] = []
    for place, part in enumerate(parts):
        children += [part, Element("wbr")] if place % 2 else [part]
    return children


def short(text: str, limit: int) -> str:
    """`text`, or its beginning, an ellipsis and its end, in which long names differ."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 3
    return f"{text[: limit - 1 - end].rstrip()}…{text[len(text) - end :].lstrip()}"


def text_of(root: Element) -> str:
    """The document, with its doctype."""
    return f"<!DOCTYPE html>\n{tostring(root, encoding='unicode', method='html')}\n"


def link_to(target: Path | str | None, folder: Path) -> str | None:
    """What a page in `folder` calls `target`: a relative path, or the address as it is."""
    if target is None or isinstance(target, str):
        return target
    try:
        return quote(Path(os.path.relpath(target, folder)).as_posix())
    except ValueError:  # another drive
        return target.as_uri()


def _attribute(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _append(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
