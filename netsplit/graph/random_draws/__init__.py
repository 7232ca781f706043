"""What random operators draw: a function of seed, batch, micro-batch and node."""
