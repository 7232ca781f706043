"""Backwards in two parts: the gradients of inputs now, those of weights later."""
