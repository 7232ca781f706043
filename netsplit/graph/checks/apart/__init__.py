"""How micro-batches are apart from the batch that they are cut of: by losses, gradients, on other values."""
