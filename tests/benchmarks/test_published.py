"""Published runs are as they are printed, and the smallest is predicted as it was measured."""

from __future__ import annotations

import pytest

from benchmarks.published import RUNS, fitted, main


def test_runs_take_all_their_devices_and_divide_their_batches() -> None:
    for run in RUNS:
        assert len(run.cluster().speeds) == run.given.devices
        assert run.samples % (run.microbatch * run.given.data) == 0
        assert run.schedule.microbatches == run.samples // run.microbatch
    assert [round(run.seconds, 2) for run in RUNS[:2]] == [2.84, 2.46]
    assert round(RUNS[-1].seconds, 1) == 102.6  # a trillion parameters at 163 TFLOP/s


class Line:
    """A run of 3 s, of which 2 go by what is sustained: here 0.8 of all."""

    def error(self, sustained: float) -> float:
        return (1.0 + 1.6 / sustained) / 3.0 - 1.0


def test_a_fit_finds_what_is_sustained() -> None:
    assert fitted([Line(), Line()]) == pytest.approx(0.8)  # type: ignore[list-item]


@pytest.mark.slow
def test_a_row_is_near_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "8B on 8, compiled", "--no-plan"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    _, name, _, published, predicted, _, gib, own_gib, *_ = (each.strip() for each in last.split("|"))
    assert name == "8B on 8, compiled"
    assert float(predicted) == pytest.approx(float(published), rel=0.1)
    assert float(own_gib) == pytest.approx(float(gib), rel=0.1)
