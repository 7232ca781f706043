"""Operators in parts, beside whole ones and torch's tensor parallelism."""
