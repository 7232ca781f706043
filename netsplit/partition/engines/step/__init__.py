"""One training step, compiled: segments, orders, instructions and seconds, as the simulator has them."""
