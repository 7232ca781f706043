"""Seconds without measuring: the work of an operator, and what share of a peak it reaches."""
