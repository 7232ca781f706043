"""The generated rules, a file of the package: ``python -m reproduce.rules`` makes it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from netsplit.rewrite.algebra.rule import Rule, rule_of

__all__ = ["FILE", "generated_rules"]

FILE = Path(__file__).with_name("generated.json")


@cache
def generated_rules() -> list[Rule]:
    """Each proven, and for one device, as parallel operators are layouts."""
    texts = json.loads(FILE.read_text(encoding="utf-8"))["rules"]
    return [rule_of(text, origin="generated", proof="proven") for text in texts]
