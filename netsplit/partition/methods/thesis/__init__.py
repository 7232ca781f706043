"""The NetSplit thesis's own method: co-placement, then constrained optimisation over groups."""
