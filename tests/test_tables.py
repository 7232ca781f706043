"""`netsplit.tables`: cells are shown in the unit and the form of their column, and no cell breaks a line."""

import math

from hypothesis import given
from hypothesis import strategies as st

from netsplit.partition.partitioner import read_bytes
from netsplit.tables import Column, Table, nbytes

COLUMNS = (Column("method", text=True), Column("time per iteration ms", ",.1f", 1e3), Column("count"))
TABLE = Table(COLUMNS, [("a|b", 1.25, 3), ("c\nd", math.inf, None)], "Times", ["A note."], {1: "failed"})


def test_markdown_has_a_line_for_each_row_and_figures_to_the_right() -> None:
    assert TABLE.markdown().splitlines() == [
        "| method | time per iteration ms | count |",
        "| --- | ---: | ---: |",
        "| a\\|b | 1,250.0 | 3 |",
        "| c d | - | - |",
    ]


def test_lines_are_aligned_and_have_headings_where_there_are_any() -> None:
    assert Table(COLUMNS, [("a|b", 1.25, 3), ("long name", math.inf, None)]).lines() == [
        "method     time per iteration ms  count",
        "a|b                      1,250.0      3",
        "long name                      -      -",
    ]
    bare = (Column("", text=True), Column("", ".1f"), Column("", text=True))
    assert Table(bare, [("a", 10.0, "why"), ("bc", 2.0, "")]).lines() == ["a   10.0  why", "bc   2.0"]
    assert Table(bare, []).lines() == []
    assert Table(COLUMNS[:1], []).lines() == ["method"]


BELOW = (Column("kind", text=True), Column("ms", ",.1f"), Column("why not", text=True, below=True))


def test_what_is_below_a_row_has_a_line_of_its_own() -> None:
    table = Table(BELOW, [("one", 1.0, "chosen"), ("other", 10.0, "")], marked={0: "best"})
    lines = ["kind     ms", "    why not", "one     1.0", "    chosen", "other  10.0"]
    assert table.lines() == lines
    assert "| one | 1.0 | chosen |" in table.markdown()


@given(
    st.lists(st.lists(st.text(st.characters(exclude_characters="\r\0")), min_size=2, max_size=2), max_size=5)
)
def test_no_text_breaks_a_table(rows: list[list[str]]) -> None:
    table = Table([Column("x", text=True), Column("y")], rows)
    lines = table.markdown().split("\n")
    assert len(lines) == 2 + len(rows)
    assert all(line.replace("\\|", "").count("|") == 3 for line in lines)


@given(st.integers(0, 2**60))
def test_bytes_are_read_out_in_mib_but_for_few(value: int) -> None:
    """No figure but that of nothing is 0, and what is rounded up is enough."""
    figure, unit = nbytes(value).split()
    size = {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]
    assert size == max(each for each in (1, 2**10, 2**20) if each <= max(value, 1))
    assert math.isclose(float(figure) * size, value, rel_tol=1e-3)
    assert (figure == "0") == (value == 0)
    assert float(nbytes(value, up=True).split()[0]) * size >= value * (1 - 1e-12)
    assert read_bytes(value).startswith(
        f"{value} bytes" if value < 2**20 else f"{nbytes(value)} ({value} bytes)"
    )


def test_a_column_of_bytes_is_in_mib() -> None:
    table = Table((Column("peak", in_bytes=True),), [(456160,), (25276514304,), (0,), (None,)])
    assert table.texts == [["0.435"], ["24,105.6"], ["0.0"], ["-"]]
    assert table.lines()[0].strip() == "peak MiB"
