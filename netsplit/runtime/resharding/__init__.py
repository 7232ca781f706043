"""Carrying out what `reshard/` plans: pieces of tensors from one device mesh to another."""
