"""Lower bounds on the latency of a graph, each from a relaxation of its own."""
