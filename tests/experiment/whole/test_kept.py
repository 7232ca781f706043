"""A training that goes on keeps the micro-batches that were decided for it."""

from __future__ import annotations

from pathlib import Path

from netsplit.experiment.whole.kept import as_decided, keep
from netsplit.planning.whole.auto_schedule import AutoSchedule


def test_what_was_decided_is_kept_and_all_else_left_open(tmp_path: Path) -> None:
    open_ = AutoSchedule(schedules=["1f1b"], time_limit_s=3.0)
    assert as_decided(open_, tmp_path / "none") is open_
    keep(tmp_path / "auto", 8)
    kept = as_decided(open_, tmp_path / "auto")
    assert kept.counts(64, 2) == (8,)
    assert (kept.schedules, kept.time_limit_s) == (["1f1b"], 3.0)


def test_a_file_that_cannot_be_read_is_as_none(tmp_path: Path) -> None:
    keep(tmp_path, 8)
    for text in ("", "{", "[]", '{"microbatches": null}', '{"microbatches": 0}'):
        (tmp_path / "decided.json").write_text(text)
        open_ = AutoSchedule()
        assert as_decided(open_, tmp_path) is open_
