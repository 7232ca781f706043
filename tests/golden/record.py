"""`python -m tests.golden.record [--cases] [--people] [--grid] [--only WORD ...] [--dump FOLDER]`

Records anew what `test_golden.py` compares. Without a part's name: cases and people, a few minutes in all.
`--only` records what has one of these words in its name, and leaves the rest as it was recorded. `--dump`
writes every case's program and numbers as text, and records nothing: what differs between two commits is
what `diff -r` says of the folders that each of them writes. `--grid` takes half an hour, and goes on where
it was interrupted; with `--limit` seconds for each plan it begins anew.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

from tests.golden import grid
from tests.golden.cases import GOLDEN
from tests.golden.people import outcome_of
from tests.golden.planned import Made, record_of
from tests.golden.recorded import FILES, machine
from tests.models_of_people.cases import all_cases
from tests.models_of_people.harness import judge


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    options = _options(arguments)
    if options.dump:
        _dump(options)
        return
    if options.cases or not (options.people or options.grid):
        own = {name: record_of(Made(case)) for name, case in GOLDEN.items() if _asked(name, options)}
        kept = _kept("cases").get("cases", {})
        _write("cases", {"machine": machine(), "cases": {k: own.get(k) or kept[k] for k in GOLDEN}})
    if options.people or not (options.cases or options.grid):
        people, kept = all_cases(), _kept("people")
        ends = {name: outcome_of(judge(case)) for name, case in people.items() if _asked(name, options)}
        _write("people", {k: ends.get(k) or kept[k] for k in people})
    if options.grid:
        _grid(options)


def _grid(options: argparse.Namespace) -> None:
    kept = _kept("grid")
    limit_s = options.limit or kept.get("limit_s", 3.0)
    cells = kept.get("cells", {}) if options.limit is None and not options.only else {}
    if options.only:
        cells = {k: v for k, v in kept.get("cells", {}).items() if not _asked(k, options)}
    for model in grid.MODELS:
        for cluster in grid.CLUSTERS:
            name = f"{model} on {cluster}"
            if name not in cells and _asked(name, options):
                cells[name] = grid.cell(model, cluster, limit_s)
                sys.stdout.write(f"{name}: {cells[name]}\n")
                _write("grid", {"limit_s": limit_s, "cells": cells})


def _dump(options: argparse.Namespace) -> None:
    options.dump.mkdir(parents=True, exist_ok=True)
    for name, case in GOLDEN.items():
        if _asked(name, options):
            made = Made(case)
            numbers = json.dumps(record_of(made), indent=1)
            file = options.dump / f"{re.sub('[^a-z0-9_]+', '-', name)}.txt"
            file.write_text(f"{numbers}\n\n{made.program}\n\n{made.state}\n")


def _asked(name: str, options: argparse.Namespace) -> bool:
    return not options.only or any(word in name for word in options.only)


def _kept(part: str) -> dict[str, Any]:
    return json.loads(FILES[part].read_text()) if FILES[part].exists() else {}


def _write(part: str, contents: dict[str, Any]) -> None:
    FILES[part].write_text(json.dumps(contents, indent=0, ensure_ascii=False) + "\n")


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    for part in FILES:
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="WORD")
    parser.add_argument("--dump", type=Path, metavar="FOLDER")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="for each plan of the grid")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
