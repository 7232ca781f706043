"""Moving tensors between devices."""
