"""The last words of a comparison are true, whatever came out."""

from __future__ import annotations

from dataclasses import replace

from netsplit.tracking import ComparisonRow, verdict_of, winner_of

MIB = 2**20


def row(method: str, rate: float, vary: float = 0.01, peak: int = 1, **more: object) -> ComparisonRow:
    """Of a measured method whose iterations vary by so much, of a limit of 2 MiB."""
    made = ComparisonRow(
        method, "feasible", predicted_s=0.5, measured_s=64 / rate, throughput=rate,
        spread=((1 - vary) * rate, (1 + vary) * rate), measured_peak={"cpu:0": peak * MIB},
        capacity={"cpu:0": 2 * MIB},
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_fastest_is_said_beside_the_second_and_one_device() -> None:
    rows = [row("m_topo", 226.4), row("auto", 283.0), row("netsplit", 204.9), row("single", 171.9)]
    assert verdict_of(rows) == (
        "auto is the fastest: 283.0 samples/s measured, 25 % more than m_topo (226.4) and 65 % more than one "
        "device (single, 171.9)."
    )
    assert winner_of(rows) == "auto"


def test_what_exceeds_a_limit_does_not_win_and_is_named_where_it_is_faster() -> None:
    rows = [row("auto", 100.0), row("single", 150.0, peak=3)]
    assert winner_of(rows) == "auto"
    assert "auto is the fastest" in verdict_of(rows)
    assert "One device (single) is faster (150.0), but exceeds the limit of cpu:0." in verdict_of(rows)
    slower = verdict_of([row("auto", 100.0), row("single", 80.0, peak=3)])
    assert "one device (single, 80.0, which exceeds the limit of cpu:0)" in slower
    alone = [row("single", 150.0, peak=3)]
    assert winner_of(alone) is None
    assert verdict_of(alone).startswith("One device (single) exceeds the limit of cpu:0: 150.0 samples/s")
