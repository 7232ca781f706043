"""A placed model in training: its programs by shape, epochs, history, checkpoints, resuming."""
