"""Nested values become what MLflow accepts."""

from __future__ import annotations

import pytest

from netsplit.tracking.database import masked
from netsplit.tracking.runs import dotted


def test_nested_keys_are_dotted_and_lists_stay_whole() -> None:
    config = {"a": {"b": 1, "c": None}, "sizes": [1, 2], "layers": [{"n": 3}], "empty": {}}
    assert dotted(config) == {
        "a.b": "1",
        "a.c": "None",
        "sizes": "[1, 2]",
        "layers": "[{'n': 3}]",
        "empty": "{}",
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://me:secret@host:5000", "http://me:***@host:5000"),
        ("http://me@work:sec/ret@host", "http://me@work:***@host"),
        ("http://me@host:5000/a, you@there", "http://me@host:5000/a, you@there"),
    ],
)
def test_passwords_of_addresses_are_hidden(given: str, shown: str) -> None:
    assert masked(given) == shown
