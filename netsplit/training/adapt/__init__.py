"""Training that changes its plan while it goes on: measured costs of every worker, and switches."""
