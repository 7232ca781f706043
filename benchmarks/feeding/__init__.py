"""Who reads the batches: what it costs."""
