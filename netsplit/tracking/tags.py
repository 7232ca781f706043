"""Tags of runs that are read again, by the report."""

__all__ = ["COMMAND", "COMPARISON", "DECISION", "PUBLISHED"]

PUBLISHED = "published."
"""``published.<method>``: the samples per second that others report of it."""
COMPARISON = "comparison"
"""Of a method's run, the id of the run of its comparison."""
COMMAND = "command"
"""The same of all that one command recorded, its cases or the jobs of a sweep."""
DECISION = "adaptive.decision."
"""``adaptive.decision.<n>``: of a method's run, what was decided about its plan in training, as JSON."""
