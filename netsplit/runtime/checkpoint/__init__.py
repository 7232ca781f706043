"""Checkpoints under the names of the plain model, written and read by all devices."""
