"""Seconds without measuring: the work of an operator, and what fraction of a peak it reaches."""
