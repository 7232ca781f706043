"""The datasets, one builder per file."""
