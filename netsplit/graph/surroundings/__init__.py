"""What code reaches beside its arguments: found, put back after a run, taken along to workers."""
