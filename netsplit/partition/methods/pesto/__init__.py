"""Pesto, as the thesis compares with it and as its authors describe it."""
