"""Rules that replace some operators by others that compute the same: kept, proven, matched and applied."""

from netsplit.rewrite.algebra.rule import Operator, Origin, Proof, Ref, Rule, Term

__all__ = ["Operator", "Origin", "Proof", "Ref", "Rule", "Term"]
