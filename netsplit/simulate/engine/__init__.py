"""Compiled loops of the simulator and of searches."""
