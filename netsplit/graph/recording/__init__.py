"""A training step recorded operator by operator, and what cannot be as single calls."""
