"""Seconds and bytes, measured: of nodes, of optimisers, of messages, of instructions."""
