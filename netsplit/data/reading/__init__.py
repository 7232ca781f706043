"""From samples to batches: in whose process, in which order, by which chance."""
