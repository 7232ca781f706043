"""The page's style and its only script, which sorts tables; the page is whole without it.

Colours of series differ in lightness as well as hue (after Okabe and Ito) and have a contrast of 3:1 or more
with their background, in light and in dark.
"""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --text: #1c2024; --soft: #5b6470; --line: #dfe2e6; --track: #eceef0;
  --link: #005c99; --bad: #b3261e; --best: #eef5ee;
  --s0: #0072b2; --s1: #c06f00; --s2: #008060; --s3: #b0508a; --s4: #2f8fc4; --s5: #c44a00; --s6: #7d6c00;
  --s7: #6b7280;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1b1f23; --text: #e6e8ea; --soft: #9aa4af; --line: #30363d; --track: #2a3036;
    --link: #7cc0f0; --bad: #ff8a80; --best: #1f2b22;
    --s0: #58aee5; --s1: #eda83a; --s2: #3cc79a; --s3: #e296c3; --s4: #93d0f4; --s5: #f28a4b; --s6: #e2d656;
    --s7: #a9b0bb;
  }
  .pictures img { opacity: .92; }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 74rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .25rem; font-weight: 650; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 0; font-weight: 650; }
h3 { font-size: 1.08rem; line-height: 1.3; margin: 0; font-weight: 650; }
p { margin: .35rem 0; max-width: 46rem; }
a { color: var(--link); text-underline-offset: .15em; }
.soft, .soft a { color: var(--soft); }
.bad { color: var(--bad); }
section { border-top: 1px solid var(--line); margin-top: 2.5rem; padding-top: 1.5rem; }
section.case { margin-top: 1.75rem; padding-top: 1.25rem; }
nav ol { margin: .75rem 0 0; padding-left: 1.5rem; }
nav ul { margin: 0; padding-left: 1.1rem; font-size: .92rem; }
dl {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr));
  gap: .6rem 1.5rem; margin: 1rem 0;
}
dt { font-size: .78rem; color: var(--soft); }
dd { margin: 0; font-size: .9rem; line-height: 1.35; }
ul.failures {
  border-left: 3px solid var(--bad); margin: 1rem 0; padding: .1rem 0 .1rem 1rem; list-style: none;
}
.charts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: 1rem;
  margin: 1.25rem 0; align-items: start;
}
figure {
  margin: 0; padding: .8rem .9rem 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px;
}
figcaption { font-size: .85rem; font-weight: 600; margin-bottom: .6rem; }
.pictures { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem; margin: 1.25rem 0; }
.pictures figure { max-width: 56rem; }
.pictures .scroll { margin: 0; }
.pictures img { display: block; width: 100%; height: auto; background: #ffffff; }
.hint { display: none; color: var(--soft); font-weight: 400; }
.notes { margin: .75rem 0; padding-left: 1.1rem; max-width: 46rem; font-size: .9rem; color: var(--soft); }
.legend {
  font-size: .82rem; color: var(--soft); display: flex; flex-wrap: wrap; gap: .2rem 1.1rem;
  margin: 1rem 0 -.5rem; padding: 0; list-style: none;
}
.legend svg { display: inline-block; width: 22px; height: 10px; margin-right: .4rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
svg text { font-size: 12px; fill: var(--text); font-variant-numeric: tabular-nums; }
svg .tick { font-size: 11px; fill: var(--soft); }
svg .figure.bad { fill: var(--bad); font-weight: 600; }
.track { fill: var(--track); }
.pale { fill: currentColor; opacity: .38; }
.solid { fill: currentColor; }
.curve { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
svg .name { font-size: 11px; fill: currentColor; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
.s4 { color: var(--s4); } .s5 { color: var(--s5); } .s6 { color: var(--s6); } .s7 { color: var(--s7); }
.grid { stroke: var(--line); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; fill: none; }
.limit { stroke: var(--text); stroke-width: 1.5; }
.leader { stroke: var(--line); stroke-width: 1; fill: none; }
.mark { fill: var(--card); stroke: var(--text); stroke-width: 1.5; }
.band { fill: var(--track); }
.scroll { overflow-x: auto; margin: 0 0 1.25rem; max-width: 100%; }
table {
  border-collapse: separate; border-spacing: 0; font-size: .86rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal;
}
.caption { font-size: .86rem; font-weight: 600; margin: 1.25rem 0 .2rem; }
th, td {
  text-align: left; padding: .32rem .7rem; border-bottom: 1px solid var(--line);
  vertical-align: baseline; white-space: nowrap;
}
thead th { color: var(--soft); font-weight: 500; border-bottom-color: var(--soft); }
tbody th { font-weight: 500; }
th:first-child {
  position: sticky; left: 0; background: var(--page); padding-left: 0; max-width: 24rem;
}
tbody th:first-child { white-space: normal; }
tbody th a { display: block; min-width: 8.5rem; }
.below { display: block; font-size: .78rem; font-weight: 400; color: var(--soft); }
.number { text-align: right; }
tr.best td, tr.best th { font-weight: 650; background: var(--best); }
code { font-size: .84em; font-family: ui-monospace, "Liberation Mono", Menlo, monospace; }
details { margin: .75rem 0; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
th[data-sort] { cursor: pointer; }
th[aria-sort="ascending"]::after { content: " \\2191"; }
th[aria-sort="descending"]::after { content: " \\2193"; }
@media (max-width: 30rem) {
  body { padding: 1rem .75rem 3rem; }
  th:first-child { max-width: 9.5rem; }
}
@media (max-width: 40rem) {
  .hint { display: inline; }
  .pictures .scroll:focus img { width: 44rem; }
}
@media print {
  section { break-before: page; }
  figure, table { break-inside: avoid; }
}
"""

SCRIPT = """
document.querySelectorAll("table").forEach(function (table) {
  var body = table.tBodies[0], heads = Array.from(table.tHead.rows[0].cells);
  function value(row, column) {
    var text = row.cells[column].textContent.trim().replace(/[,\u2605]/g, "").replace("\u2212", "-");
    var number = parseFloat(text);
    return isNaN(number) ? text : number;
  }
  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return typeof a === typeof b ? a.localeCompare(b) : typeof a === "number" ? -1 : 1;
  }
  heads.forEach(function (head, column) {
    function sort() {
      var sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      var rows = Array.from(body.rows);
      rows.sort(function (a, b) { return sign * compare(value(a, column), value(b, column)); });
      heads.forEach(function (each) { each.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      body.append.apply(body, rows);
    }
    head.setAttribute("data-sort", "");
    head.tabIndex = 0;
    head.addEventListener("click", sort);
    head.addEventListener("keydown", function (event) { if (event.key === "Enter") sort(); });
  });
});
"""
