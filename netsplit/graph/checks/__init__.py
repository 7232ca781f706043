"""Is what was captured what the model does? Before training, and while it trains."""
