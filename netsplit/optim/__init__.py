"""Optimisers and learning rates as a config names them, and what of them can be split over devices."""
