"""Batches that workers read themselves: the controller tells where they stand."""
