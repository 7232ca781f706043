"""The rules of the package, each proven: those of a search's first choice, and generated ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from netsplit.rewrite.algebra.rule import Rule, rule_of

__all__ = ["FILE", "both_ways", "generated_rules", "rules_builtin"]

FILE = Path(__file__).with_name("generated.json")
"""``python -m reproduce.rules`` makes it."""


@cache
def rules_builtin() -> tuple[Rule, ...]:
    """Those of `builtin.txt`, each both ways, where that may be."""
    text = FILE.with_name("builtin.txt").read_text(encoding="utf-8")
    named = [line.split(": ", 1) for line in text.splitlines() if not line.startswith("#")]
    return both_ways([rule_of(equation, name, proof="proven") for name, equation in named])


@cache
def generated_rules() -> list[Rule]:
    """Those of the file, one way round."""
    texts = json.loads(FILE.read_text(encoding="utf-8"))["rules"]
    return [rule_of(text, origin="generated", proof="proven") for text in texts]


def both_ways(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """The rules and their reverses whose left side says what the right side needs."""
    both = [own for rule in rules for own in (rule, rule.reversed)]
    return tuple(rule for rule in both if rule.left and not rule.unbound and rule.left[0].op != "enlarge")
