"""Costs of operators in parts, measured when a plan first has them."""
