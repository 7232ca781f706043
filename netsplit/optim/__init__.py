"""Optimisers and learning rates, and checks that they can be split over devices."""
