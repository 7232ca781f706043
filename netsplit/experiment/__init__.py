"""Sessions, comparisons, forecasts: from a model and devices to plans that are made, measured, recorded."""
