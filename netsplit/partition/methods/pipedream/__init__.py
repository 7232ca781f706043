"""PipeDream's planner: stages with replicas, and the time of a stage."""
