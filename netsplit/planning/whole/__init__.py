"""The whole plan: devices, placement, replicas, schedule, micro-batches, recomputation, decided together."""
