"""The whole plan beside a grid of all that could be asked for by name."""
