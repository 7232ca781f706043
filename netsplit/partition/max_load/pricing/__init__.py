"""Columns of the most price within a load, by dynamic programming along narrow orders, or by annealing."""
