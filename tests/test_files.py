"""Files are replaced whole or not at all, and only files are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from netsplit.errors import NetSplitError
from netsplit.files import write_atomically, write_text


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


def test_errors_name_the_path_that_was_given(tmp_path: Path) -> None:
    target = tmp_path / ("a" * 250 + ".txt")  # fits, the temporary name does not
    with pytest.raises(OSError, match="too long") as caught:
        write_text(target, "")
    assert caught.value.filename == str(target)

    def read_another(file: Path) -> None:
        (tmp_path / "other").read_bytes()

    with pytest.raises(FileNotFoundError) as missing:
        write_atomically(tmp_path / "b.txt", read_another)
    assert missing.value.filename == str(tmp_path / "other")
