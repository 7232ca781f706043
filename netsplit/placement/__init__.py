"""Nouns of an answer: which device has which node, in which order, and how variables travel."""
