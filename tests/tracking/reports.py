"""Reports made by hand, and their page, read."""

from __future__ import annotations

from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

from netsplit.report import Report, Section, html_page

HOSTILE = "<script>alert('x')</script> \"q\" & ünïcödé | *b* \u202egnp"
VOID = {"meta", "link", "br", "wbr", "img", "hr", "input"}
WHEN = datetime(2026, 11, 21, 17, 44, tzinfo=UTC)


def report(*sections: Section, title: str = "A report") -> Report:
    return Report(title, sections, "sqlite:///outputs/mlflow.db", WHEN, len(sections))


class Parsed(HTMLParser):
    """Refuses what is not nested; keeps texts, tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.texts).split())


def parsed(shown: Report) -> Parsed:
    return Parsed(html_page(shown, Path("/somewhere")))
