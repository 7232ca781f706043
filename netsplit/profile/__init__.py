"""What a graph costs: seconds and bytes of its nodes, and of the optimiser; only measuring loads torch."""
