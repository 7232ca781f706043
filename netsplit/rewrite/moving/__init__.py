"""Nodes that only move tensors, and what a tensor consists of that they put together."""
