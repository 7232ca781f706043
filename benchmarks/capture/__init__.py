"""Which models are captured, and train split as they train whole: `python -m benchmarks.capture`."""
