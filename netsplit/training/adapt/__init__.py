"""Changing the plan during training, by measured costs of every worker."""
