"""The static cost predictor against measured profiles: `python -m benchmarks.predictor`."""
