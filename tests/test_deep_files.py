"""Files of ten thousand brackets, at which Python's reader of JSON gives up in its own way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from netsplit.cluster.rates_file import read_rates
from netsplit.errors import NetSplitError
from netsplit.files import parsed_json
from netsplit.formats import text
from netsplit.graph import files

DEEP = "[" * 100_000

READERS: dict[str, Callable[[Path], object]] = {
    "rates": lambda path: read_rates(path, "rates"),
    "graph": lambda path: files.load(path),
    "text": lambda path: text.parse_json(path.read_text(), str(path)),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_file_nested_too_deeply_is_a_sentence(reader: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text(DEEP)
    with pytest.raises(NetSplitError, match=r"deep\.json") as caught:
        reader(path)
    assert "\n" not in str(caught.value)


def test_deep_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parsed_json(DEEP)
