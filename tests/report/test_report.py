"""The page runs no name as markup, loads nothing, and links to files from where it is."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from netsplit.report import PictureFile, Section, html_page, write_report
from netsplit.report.page import PAGE
from netsplit.tables import Column, Table
from netsplit.tracking import comparison_table
from tests.tracking.reports import HOSTILE, Parsed, parsed, report
from tests.tracking.samples import rows

TRAINED = Section("digits", ["netsplit is the fastest."], ["m_sct: no room"], [comparison_table(rows())])


def test_every_figure_is_shown() -> None:
    words = parsed(report(TRAINED)).words
    assert "netsplit optimal obj 123.4 ms gap 0.0 % in 12,345 ms 200.0 250.0 -20.0 128.0 0.1234 93.8" in words
    assert "cpu:0 cpu:1 203 219 38.0 40.0 39.0 41.0 48.0 48.0" in words
    assert "optimal for the method's own objective" in words


@pytest.mark.parametrize("text", [HOSTILE, "]]> --> </style>", "\x00\x1b[31m"])
def test_no_name_is_read_as_markup(text: str) -> None:
    table = Table([Column("x", text=True), Column(text)], [(text, text)], text, [text])
    links = [(text, Path("/a b/trace.json"))]
    section = Section(text, [text], [text], [table], [PictureFile(text, b"x")], [table], links)
    hostile = report(section, replace(section, inner=True), title=text)
    page = Parsed(html_page(hostile, Path()))
    assert (page.count("script"), page.count("style"), page.count("img")) == (1, 1, 2)
    clean = re.sub("[\x00\x1b\u202e]", "\N{REPLACEMENT CHARACTER}", text)
    assert clean in "".join(page.texts)


def test_the_page_loads_nothing() -> None:
    text = html_page(report(replace(TRAINED, pictures=[PictureFile("training", b"png")])), Path("/somewhere"))
    page = Parsed(text)
    for tag, attrs in page.tags:
        assert (attrs.get("src") or "data:").startswith("data:")
        if tag == "link":
            assert attrs["href"] == "data:,"
    assert not re.search(r"@import|url\(|srcset|<(iframe|object|embed)\b", text)


def test_an_installed_package_has_every_template() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    (pattern,) = project["tool"]["setuptools"]["package-data"]["netsplit.report"]
    names = {path.name for path in (root / "netsplit" / "report").glob(pattern)}
    assert names == set(PAGE.list_templates()) == {"page.html.j2", "style.css", "sort.js"}


def test_files_are_linked_from_where_the_page_is(tmp_path: Path) -> None:
    trace = tmp_path / "mlartifacts" / "a b" / "artifacts" / "trace.json"
    page = write_report(report(Section("x", links=[("trace", trace)])), tmp_path / "out" / "report.html")
    assert 'href="../mlartifacts/a%20b/artifacts/trace.json"' in page.read_text()
    assert "https://ui.perfetto.dev" in page.read_text()
