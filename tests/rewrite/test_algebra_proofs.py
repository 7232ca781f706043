"""Rules of the algebra: properties that hold, and rules that are proven by them."""

import pytest

from netsplit.rewrite.algebra.builtin import FILE, rules_builtin
from netsplit.rewrite.algebra.rule import Rule, rule_of
from reproduce.evaluation import cases
from reproduce.proofs import is_proven, properties
from reproduce.rules import PARALLEL_PROPERTIES

ASSOCIATIVE = "concat(concat(x, y, dim=d), z, dim=d) = concat(x, concat(y, z, dim=d), dim=d)"
LINES = dict((*properties(), *properties(PARALLEL_PROPERTIES)))
DEAR = [
    line for line, rules in LINES.items()
    if rules[0].exact or (rules[0].is_parallel and len(rules[0].inputs) > 1)
]  # fmt: skip


def _exactly(line: str, rule: Rule, most: int) -> None:
    """Both sides split alike, or one not at all: z3 takes what is equal for equal in a split too."""
    sizes = range(1, min(most, {4: 3, 5: 2}.get(len(rule.inputs), most)) + 1)
    degrees = range(1, most + 1 if len(rule.inputs) == 1 else min(most, 3) + 1) if rule.is_parallel else ()
    both = list(cases(rule, sizes, degrees, (0, 1, 2) if rule.exact else (2, 3), both=True))
    assert both, f"{rule.name} exists nowhere"
    assert all(case.agrees for case in both), rule.name
    assert line == ASSOCIATIVE or all(case.splits_alike for case in both), rule.name


@pytest.mark.parametrize("line", [line for line in LINES if line not in DEAR])
def test_a_property_holds_at_all_sizes_to_four(line: str) -> None:
    for rule in LINES[line]:
        _exactly(line, rule, 4)


@pytest.mark.slow
@pytest.mark.parametrize("line", DEAR)
def test_a_property_of_tensors_in_pieces_or_of_convolutions_holds_at_all_sizes_to_four(line: str) -> None:
    """Degrees 1, 2 and 3; convolutions with a bias to size 2."""
    for rule in LINES[line]:
        _exactly(line, rule, 4)


@pytest.mark.parametrize("line", DEAR)
def test_a_property_of_tensors_in_pieces_or_of_convolutions_holds_at_small_sizes(line: str) -> None:
    for rule in LINES[line]:
        _exactly(line, rule, 3 if rule.exact else 2)


def test_every_rule_that_is_built_in_is_proven() -> None:
    """Along both dimensions; their reverses are as well, as equations."""
    assert all(rule.proof == "proven" for rule in rules_builtin())
    lines = FILE.with_name("builtin.txt").read_text(encoding="utf-8").splitlines()
    texts = {line.split(": ", 1)[1].replace("dim=d", f"dim={d}") for line in lines[3:] for d in (0, 1)}
    assert [text for text in texts if not is_proven(rule_of(text))] == []


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("linear(x, concat(y, z, dim=0)) = concat(linear(x, y), linear(x, z), dim=1)", True),
        ("linear(add(x, y), z) = add(linear(y, z), linear(x, z))", True),
        ("unary(add(x, y)) = add(unary(x), unary(y))", False),
        ("linear(x, y) = linear(y, x)", False),
        ("split(concat(x, y, dim=0), dim=0)[0] = y", False),
        ("x = y", False),
    ],
)
def test_what_is_true_is_proven_and_nothing_else(text: str, is_true: bool) -> None:
    """From `x = y`, all would follow: the properties do not contradict each other as far as z3 looks."""
    assert is_proven(rule_of(text)) == is_true
