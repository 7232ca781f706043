"""Consecutive operators of a step measured together."""
