"""A placed model moved to another placement, between two iterations."""
