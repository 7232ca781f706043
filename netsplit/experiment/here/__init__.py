"""A training step on workers that are here: what it costs there, and its planner."""
