"""What a whole plan is decided from: one model at several sizes of micro-batches, with its costs at each."""
