"""Batches, outputs and losses of any structure, as flat tensors and back."""
