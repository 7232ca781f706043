"""The file of generated rules: made anew as far as graphs of two operators, and what it has."""

from netsplit.rewrite.algebra.rule import generated_rules
from reproduce.rules import ALGEBRA, property_counts, prove, rule_candidates, summary


def test_rules_of_two_operators_made_anew_are_those_of_the_package() -> None:
    """Order and names as well, as both are drawn and met in the same order everywhere."""
    made, _ = prove(rule_candidates(ALGEBRA, 2, 4)[0])
    kept = [rule for rule in generated_rules() if len(rule.left) <= 2 and len(rule.right) <= 2]
    assert made
    assert made == kept
    assert all(rule.proof == "proven" and rule.origin == "generated" for rule in generated_rules())


def test_rules_of_three_operators_have_products_merged_and_reassociated() -> None:
    """Rules that the built-in ones have, met by the generation without knowing of them."""
    names = {rule.name for rule in generated_rules()}
    merged = "split(linear(x2, concat(x0, x1, dim=0)), dim=1)"
    assert f"{merged}[0], {merged}[1] = linear(x2, x0), linear(x2, x1)" in names
    assert "concat(linear(x0, x1), linear(x0, x2), dim=1) = linear(x0, concat(x1, x2, dim=0))" in names
    assert len(names) == len(generated_rules())
    assert property_counts() == {"without parallel operators": 46, "with": 59}
    assert f"{len(names)} kept" in summary()
