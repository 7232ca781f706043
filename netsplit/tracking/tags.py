"""Tags of a comparison's run that are read again, by the report."""

__all__ = ["COMMAND", "PUBLISHED"]

PUBLISHED = "published."
"""``published.<method>``: the samples per second that others report of it."""
COMMAND = "command"
"""The same of all that one command recorded, its cases or the jobs of a sweep."""
