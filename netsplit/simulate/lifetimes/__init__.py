"""Lifetimes of bytes: inside a segment, and on a device over its instructions."""
