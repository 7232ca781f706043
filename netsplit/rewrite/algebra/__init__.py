"""Rules that replace some operators by others that compute the same: kept, found, proven and applied."""

from netsplit.rewrite.algebra.rule import Operator, Origin, Proof, Ref, Rule, Term

__all__ = ["Operator", "Origin", "Proof", "Ref", "Rule", "Term"]
