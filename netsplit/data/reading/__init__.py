"""From samples to batches: processes, order and randomness."""
