"""Files are replaced whole or not at all, and only files are."""

import json
import math
import os
from pathlib import Path

import pytest

from netsplit.errors import NetSplitError
from netsplit.files import check_writable, write_atomically, write_json, write_text


def test_a_file_is_replaced_and_a_link_to_it_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "sub" / "a.txt", tmp_path / "link"
    write_text(target, "one")
    link.symlink_to(target)
    write_text(link, "two")
    assert target.read_text() == "two"
    assert link.is_symlink()


def test_what_is_no_file_is_refused_and_left(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link, tmp_path):
        with pytest.raises(NetSplitError, match=f"'{path}' is a folder or a device"):
            write_text(path, "")
    assert pipe.is_fifo()
    assert {each.name for each in tmp_path.iterdir()} == {"pipe", "link"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail(file: Path) -> None:
        file.write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_atomically(target, fail)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_not_finite_is_null_in_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {1: [math.inf, (0.5, math.nan)], "b": {"c": -math.inf, "d": "text"}})
    written = json.loads((tmp_path / "a.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert written == {"1": [None, [0.5, None]], "b": {"c": None, "d": "text"}}


def test_what_cannot_be_written_is_refused_before_it_is(tmp_path: Path) -> None:
    check_writable(tmp_path / "not" / "there" / "a.json")
    assert not list(tmp_path.iterdir())
    file = tmp_path / "file"
    file.write_text("")
    check_writable(file)
    for path in (file / "a.json", tmp_path):
        with pytest.raises(NetSplitError, match=str(path.parent if path != tmp_path else path)):
            check_writable(path)
