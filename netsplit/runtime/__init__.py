"""Programs executed: by one process per device, or all in one; and their checkpoints."""
