"""What `parallelize` says of its stages, and to whom."""

import io
import sys

import pytest

from netsplit.progress import Stages, shown_stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(wanted: bool = True) -> Stages:
    with shown_stages(wanted) as stages:
        stages.part("measuring on cpu:0", 0, 10)
        stages.part("measuring on cpu:0", 7, 12)
        assert stages.rows()[-1][:3] == ("…", "measuring on cpu:0", "7 of 12 parts")
        stages.stage("plan by auto", 30, "s")
        stages.note("best so far 3 ms, by heft")
        assert stages.rows()[-1][2] == "0 of at most 30 s, best so far 3 ms, by heft"
        sys.stdout.write("said meanwhile\n")
    return stages


def test_a_terminal_has_them_at_stderr_and_stdout_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        work()
    assert "7 of 12 parts" in screen.getvalue()
    assert "best so far 3 ms, by heft" in screen.getvalue()
    assert capsys.readouterr().out == "said meanwhile\n"
