"""Pictures of a run, a comparison, a graph, an iteration."""
