"""Lower bounds on latency and on the iteration under any schedule, each from a relaxation of its own."""
