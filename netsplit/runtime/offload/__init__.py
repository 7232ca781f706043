"""What a device keeps in its host's memory: optimiser state between steps, saved tensors till backward."""
